"""HTTP client of the workers: one attempt; errors become outcomes, a stream's first event is held back."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from cachefleet_controlplane.gateway.upstream.gate_refusals import Watch
from cachefleet_controlplane.gateway.upstream.held_answer import HeldAnswer, HeldBody
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.gateway.upstream.worker_answer import (
    Answer,
    Opened,
    Stream,
    WorkerResponse,
    outcome_of,
    told,
)
from cachefleet_controlplane.gateway.upstream.worker_tls import WorkerTls
from cachefleet_controlplane.wire.headers import answer_headers
from cachefleet_core.continuation import CONVERSATION_HEADER
from cachefleet_core.engine.held_requests import MEDIA_TYPE, HoldError
from cachefleet_core.prompt_keys import PROMPT_HEADER
from cachefleet_runtime.lru import LruMap
from cachefleet_runtime.sse import EventSplitter, StreamTooLargeError

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 4.0
"""Shorter than vLLM's own five seconds, so that we rarely write into a connection it is closing."""
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
_STATUSES: Final = range(200, 600)
_KEY_REFUSED: Final = frozenset({401, 403})
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
MAX_REFUSED: Final = 1024
"""Workers whose certificate was refused that are remembered, so that each is logged once."""
_READ_BYTES: Final = 64 * 1024
_LARGE_BYTES: Final = 1024 * 1024
"""Longer bodies are passed as a file, which aiohttp writes piece by piece."""
_EVENT_STREAM: Final = "text/event-stream"


@dataclass(slots=True)
class _Caught:
    """What has come of an attempt so far."""

    response: WorkerResponse | None = None
    opened: Opened = field(default_factory=lambda: Opened(Outcome.LOST))


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
        data = body if len(body) < _LARGE_BYTES else io.BytesIO(body)
        async with self._caught(url) as caught:
            caught.response = await self._post(url, path, data, headers=headers)
            caught.opened = await _read(caught.response, watch)
        return caught.opened

    async def hold(
        self, url: str, path: str, body: bytes, *, headers: Sequence[tuple[str, str]], seconds: float
    ) -> Opened:
        """Send a request that the worker renders and holds; as ``ask`` where it answers at once, and for failures."""
        parts = HeldBody(body)
        try:
            async with asyncio.timeout(seconds), self._caught(url) as caught:
                response = caught.response = await self._post(url, path, parts, headers=headers)
                caught.opened = await _held(response, parts)
        except TimeoutError:
            return Opened(Outcome.SILENT)
        return caught.opened

    async def go(self, url: str, held: HeldAnswer, *, watch: Watch | None = None) -> Opened:
        """Have a worker answer the request that it holds; as ``open``."""
        async with self._caught(url) as caught:
            caught.response = held
            await held.answered()
            caught.opened = await _read(held, watch)
        return caught.opened

    @asynccontextmanager
    async def _caught(self, url: str) -> AsyncIterator[_Caught]:
        """Turn what fails while a worker is asked into an outcome; its connection is cut."""
        caught = _Caught()
        try:
            yield caught
        except (StreamTooLargeError, HoldError):
            _cut(caught.response)
            caught.opened = Opened(Outcome.OVERSIZED)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            _cut(caught.response)
            self._tell(url, error)
            caught.opened = Opened(outcome_of(error))
        except asyncio.CancelledError:
            _cut(caught.response)
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
        self, url: str, path: str, data: bytes | io.BytesIO | HeldBody, *, headers: Sequence[tuple[str, str]]
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("Upstream is used outside its context")
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


async def _read(response: WorkerResponse, watch: Watch | None = None) -> Opened:
    """Read a whole answer, or a stream up to its first event."""
    if response.content_type == _EVENT_STREAM and response.status == 200:
        return await _open_stream(response, watch)
    return await _whole(response)


async def _held(response: aiohttp.ClientResponse, parts: HeldBody) -> Opened:
    """Read the keys of a held request; its answer where it has one already."""
    if response.content_type != MEDIA_TYPE:
        return await _read(response)
    held = HeldAnswer(response, parts)
    keys = await held.keys()
    if keys is None:
        await held.answered()
        return await _read(held)
    return Opened(Outcome.ANSWERED, held=held, keys=keys)


async def _open_stream(response: WorkerResponse, watch: Watch | None) -> Opened:
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


async def _whole(response: WorkerResponse) -> Opened:
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise StreamTooLargeError("an answer that is too long")
    response.release()
    headers, kept = answer_headers(response.raw_headers), told(response, CONVERSATION_HEADER)
    answer = Answer(response.status, headers, b"".join(pieces), told(response, PROMPT_HEADER), kept)
    return Opened(_judged(response.status), answer=answer)


def _judged(status: int) -> Outcome:
    if status in _KEY_REFUSED:
        return Outcome.KEY_REFUSED
    failed = status >= 500 and status != 501  # 501: what one worker does not implement, none does
    return Outcome.SERVER_ERROR if failed else Outcome.ANSWERED


def _cut(response: WorkerResponse | None) -> None:
    if response is not None:
        response.close()
