"""HTTP client of the workers: one attempt; aiohttp's errors become outcomes, a stream's first event is held back."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from cachefleet_controlplane.gateway.upstream.answer import error_code
from cachefleet_controlplane.gateway.upstream.gate_refusals import Watch
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.gateway.upstream.worker_tls import WorkerTls
from cachefleet_controlplane.wire.headers import Header, answer_headers
from cachefleet_core.prompt_keys import PROMPT_HEADER
from cachefleet_runtime.lru import LruMap
from cachefleet_runtime.sse import EventSplitter, StreamTooLargeError, event_data, is_end, is_prelude

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 4.0
"""Shorter than vLLM's own five seconds, so that we rarely write into a connection it is closing."""
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
_STATUSES: Final = range(200, 600)
_KEY_REFUSED: Final = frozenset({401, 403})
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
MAX_REFUSED: Final = 1024
"""Workers whose certificate was refused that are remembered, so that each is logged once."""
MAX_HELD_EVENTS: Final = 1024
"""Events without a token that are held back, at most; then the stream goes to the client all the same."""
_READ_BYTES: Final = 64 * 1024
_LARGE_BYTES: Final = 1024 * 1024
"""Longer bodies are passed as a file, which aiohttp writes piece by piece."""

MAX_HANDLE: Final = 256
_EVENT_STREAM: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's whole answer, with the headers that a client may see."""

    status: int
    headers: tuple[Header, ...]
    body: bytes
    prompt: str = ""
    """Handle of the prompt that the worker keeps; "" for none."""


class Stream:
    """A worker's answer that has begun, read event by event; ``first`` are the events already read."""

    def __init__(self, response: aiohttp.ClientResponse, splitter: EventSplitter) -> None:
        self._response = response
        self._splitter = splitter
        self.status = response.status
        self.headers = answer_headers(response.raw_headers)
        self.first: list[bytes] = []
        self.done = False
        """The last event that a client waits for has been read; the connection may still be open."""
        self.outcome: Outcome | None = None
        """Why the stream ended; None while it goes on."""

    async def hold(self, watch: Watch | None = None) -> Outcome:
        """Read until an event is here that has data and is no prelude (see ``sse.is_prelude``).

        With a ``watch``: until it has decided, which may be that the worker's gate refused the request.
        """
        begun = False
        while self.outcome is None and not begun and len(self.first) < MAX_HELD_EVENTS:
            events = await self.more()
            begun = _begun(events, watch)
            self.first += events
        if any(error_code(event) >= 500 for event in self.first):
            return Outcome.SERVER_ERROR
        if watch and not begun and self.outcome is None:
            watch.give_up()
        if watch and watch.refused:
            return Outcome.GATE_REFUSED
        if self.outcome is Outcome.FINISHED:
            return Outcome.FIRST_EVENT if self.first else Outcome.LOST
        return self.outcome or Outcome.FIRST_EVENT

    async def more(self) -> list[bytes]:
        """Return the next events; none once ``outcome`` is set."""
        events: list[bytes] = []
        while not events and self.outcome is None:
            try:
                data = await self._response.content.readany()
                events = list(self._splitter.feed(data)) if data else self._end()
            except StreamTooLargeError:
                self.outcome = Outcome.OVERSIZED
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self.outcome = Outcome.FINISHED if self.done else outcome_of(error)
        if events and is_end(events[-1]):
            self.done = True
        return events

    def _end(self) -> list[bytes]:
        self.outcome = Outcome.FINISHED
        return [self._splitter.rest] if self._splitter.rest else []

    def close(self) -> None:
        """Release the connection where the stream has ended, else cut it: that frees the worker at once."""
        if self.outcome is Outcome.FINISHED:
            self._response.release()
        else:
            self._response.close()


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of an attempt so far: its outcome, and at most one of answer and stream."""

    outcome: Outcome
    answer: Answer | None = None
    stream: Stream | None = None


class Upstream:
    """The gateway's one HTTP client; a context manager. Bounds are in seconds.

    ``tls`` verifies workers at https URLs; without it these are verified as any server of the web.
    """

    def __init__(self, *, connect_seconds: float, idle_seconds: float, tls: WorkerTls | None = None) -> None:
        self._tls = tls
        self._refused: LruMap[str, str] = LruMap(MAX_REFUSED)
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds, sock_read=idle_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # The gateway bounds its requests, and so its connections; a second bound here would only be a hidden queue.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Content-Type", "User-Agent", "Accept"),
            read_bufsize=_READ_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def open(
        self,
        url: str,
        path: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]],
        watch: Watch | None = None,
    ) -> Opened:
        """Send a request; return a whole answer, a stream with its first event, or the outcome of a failure.

        With a ``watch`` a stream is held back until it has decided.
        """
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._post(url, path, body, headers=headers)
            if response.content_type == _EVENT_STREAM and response.status == 200:
                return await _open_stream(response, watch)
            return await _whole(response)
        except StreamTooLargeError:
            _cut(response)
            return Opened(Outcome.OVERSIZED)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            _cut(response)
            self._tell(url, error)
            return Opened(outcome_of(error))
        except asyncio.CancelledError:
            _cut(response)
            raise

    def _tell(self, url: str, error: Exception) -> None:
        """Log, once for each worker and reason, why its TLS is refused: the outcome says no more than unreachable."""
        if isinstance(error, aiohttp.ClientSSLError) and self._refused.get(url) != str(error):
            self._refused.put(url, str(error))
            logger.warning("the certificate of a worker is refused: %s", error, extra={"worker": url})

    async def ask(
        self, url: str, path: str, body: bytes, *, headers: Sequence[tuple[str, str]], seconds: float
    ) -> Opened:
        """As ``open``, bounded to ``seconds`` in all; SILENT beyond."""
        try:
            async with asyncio.timeout(seconds):
                return await self.open(url, path, body, headers=headers)
        except TimeoutError:
            return Opened(Outcome.SILENT)

    async def _post(
        self, url: str, path: str, body: bytes, *, headers: Sequence[tuple[str, str]]
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("Upstream is used outside its context")
        data = body if len(body) < _LARGE_BYTES else io.BytesIO(body)
        response = await self._session.post(
            url + path, data=data, headers=headers, allow_redirects=False, **self._verified(url)
        )
        if response.status not in _STATUSES:
            response.close()
            raise aiohttp.ClientPayloadError(f"status {response.status} is none")
        return response

    def _verified(self, url: str) -> dict[str, Any]:
        """How a worker's certificate is verified; nothing where it serves without one."""
        if self._tls is None or not (name := self._tls.server_name(url)):
            return {}
        return {"ssl": self._tls.trusted.context(), "server_hostname": name}


def _begun(events: Sequence[bytes], watch: Watch | None) -> bool:
    """Whether enough of a stream is here to know what to do with it."""
    if watch is None:
        return any(event_data(event) and not is_prelude(event) for event in events)
    for event in events:
        watch.feed(event)
    return watch.decided or any(map(error_code, events))


def outcome_of(error: Exception) -> Outcome:
    """Return the attempt's outcome for a connection error."""
    match error:
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError() | aiohttp.InvalidURL():
            return Outcome.UNREACHABLE
        case TimeoutError():
            return Outcome.SILENT
        case _:
            return Outcome.LOST


async def _open_stream(response: aiohttp.ClientResponse, watch: Watch | None) -> Opened:
    stream = Stream(response, EventSplitter(MAX_EVENT_BYTES))
    try:
        outcome = await stream.hold(watch)
        if outcome is Outcome.FIRST_EVENT:
            return Opened(outcome, stream=stream)
        answer = await _rest(stream) if outcome is Outcome.SERVER_ERROR else None
    except asyncio.CancelledError:
        stream.close()
        raise
    stream.close()
    return Opened(outcome, answer=answer)


async def _rest(stream: Stream) -> Answer:
    """Read a stream that is only an error to its end; return it as a whole answer."""
    events = stream.first
    while more := await stream.more():
        events += more
    return Answer(stream.status, stream.headers, b"".join(events))


async def _whole(response: aiohttp.ClientResponse) -> Opened:
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise StreamTooLargeError("an answer that is too long")
    response.release()
    answer = Answer(response.status, answer_headers(response.raw_headers), b"".join(pieces), _handle(response))
    return Opened(_judged(response.status), answer=answer)


def _judged(status: int) -> Outcome:
    if status in _KEY_REFUSED:
        return Outcome.KEY_REFUSED
    failed = status >= 500 and status != 501  # 501: what one worker does not implement, none does
    return Outcome.SERVER_ERROR if failed else Outcome.ANSWERED


def _handle(response: aiohttp.ClientResponse) -> str:
    handle = response.headers.get(PROMPT_HEADER, "")
    return handle if len(handle) <= MAX_HANDLE else ""


def _cut(response: aiohttp.ClientResponse | None) -> None:
    if response is not None:
        response.close()
