"""HTTP client of the workers: one attempt; errors become outcomes, a stream's first event is held back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from cachefleet_native import ClientRequest, WorkerClient

from cachefleet_controlplane.gateway.send.answer_budget import COUNTED_BYTES, AnswerBudget, HeldAnswerBytes
from cachefleet_controlplane.gateway.send.answers.gate_refusals import Watch
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import (
    FAILURES,
    Answer,
    AnswerStream,
    AttemptResult,
    WorkerResponse,
    outcome_of,
    readable,
)
from cachefleet_controlplane.gateway.send.worker_call import (
    MAX_EVENT_BYTES,
    AttemptError,
    Call,
    Held,
    HeldKeys,
    NativeResponse,
)
from cachefleet_controlplane.gateway.send.worker_tls import WorkerTls, WorkerTrust
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_runtime.lru import LruMap
from cachefleet_runtime.sse import EventSplitter

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 4.0
"""Shorter than vLLM's own five seconds, so that we rarely write into a connection it is closing."""
MAX_LOGGED: Final = 1024
"""Workers that could not be asked that are remembered, so that each is logged once."""
HEALTH_PATH: Final = "/health"
_UNAVAILABLE: Final = 503
_KEY_REFUSED: Final = frozenset({401, 403})
CONNECT_SECONDS: Final = 2.0
"""How long connecting to a worker may take."""
_LOOK_AGAIN_SECONDS: Final = 0.05


class Upstream:
    """The gateway's one HTTP client, whose connections are native threads'; a context manager. Bounds are in seconds.

    ``tls`` verifies workers at https URLs; without it these are verified as any server of the web.
    """

    def __init__(
        self,
        completions: Completions,
        *,
        idle_seconds: float,
        connect_seconds: float = CONNECT_SECONDS,
        tls: WorkerTls | None = None,
    ) -> None:
        self._completions = completions
        self._trust = WorkerTrust(tls)
        self._logged: LruMap[str, str] = LruMap(MAX_LOGGED)
        self._client = WorkerClient(
            completions.native,
            connect_seconds=connect_seconds,
            idle_seconds=idle_seconds,
            keep_alive_seconds=KEEP_ALIVE_SECONDS,
            max_whole_bytes=COUNTED_BYTES,
        )
        self.answers = AnswerBudget()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close the connections that wait for a request."""
        self._client.close()

    async def open(
        self,
        url: str,
        path: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]],
        watch: Watch | None = None,
        beside: Any = None,
        gateway: bool = False,
    ) -> AttemptResult:
        """Send a request; return a whole answer, a stream with its first event, or the outcome of a failure.

        With a ``watch`` a stream is held back until it has decided. ``beside``: the native request of the client that
        the answer is for. ``gateway``: what answers is another gateway, whose own headers the client sees.
        """
        call: Call | None = None
        try:
            call = self._send(url, path, body, headers, beside=beside, gateway=gateway)
            return await self._read(url, await call.response(), watch)
        except asyncio.CancelledError:
            _cut(call)
            raise
        except FAILURES as error:
            return self._failed(url, error, call)

    async def hold(
        self,
        url: str,
        path: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]],
        seconds: float,
        beside: Any = None,
    ) -> AttemptResult:
        """Send a request that the worker renders and holds; as ``ask`` where it answers at once, and for failures.

        ``beside`` as for ``open``.
        """
        call: Call | None = None
        try:
            async with asyncio.timeout(seconds):
                call = self._send(url, path, body, headers, hold=True, beside=beside)
                began = await call.held()
                if isinstance(began, HeldKeys):
                    return AttemptResult(Outcome.ANSWERED, held=began.held, keys=began.keys)
                return await self._read(url, began)
        except asyncio.CancelledError:
            _cut(call)
            raise
        except FAILURES as error:
            return self._failed(url, error, call)

    async def go(self, held: Held, *, url: str, members: bytes = b"", watch: Watch | None = None) -> AttemptResult:
        """Have the worker at a URL answer the request that it holds; as ``open``.

        ``members`` of the body may come late, as JSON.
        """
        try:
            return await self._read(url, await held.answered(members), watch)
        except asyncio.CancelledError:
            held.close()
            raise
        except FAILURES as error:
            return self._failed(url, error, held)

    async def ask(
        self, url: str, path: str, body: bytes, *, headers: Sequence[tuple[str, str]], seconds: float
    ) -> AttemptResult:
        """As ``open``, bounded to ``seconds`` in all; SILENT beyond."""
        try:
            async with asyncio.timeout(seconds):
                return await self.open(url, path, body, headers=headers)
        except TimeoutError:
            return AttemptResult(Outcome.SILENT)

    async def ended(self, url: str, seconds: float) -> bool:
        """Whether the engine at a URL has ended; one of which that is not learnt in so many seconds has not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (ended := await self._ended(url)) is None:  # noqa: ASYNC110 # nobody tells when it is known
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                return ended
        return False

    async def _ended(self, url: str) -> bool | None:
        """Whether it refuses connections, or says that its core is gone; None where its connection broke, which says
        nothing yet.
        """
        call: Call | None = None
        try:
            call = self._send(url, HEALTH_PATH, None, ())
            status = (await call.response()).status
        except AttemptError as error:
            self._log_untrusted(url, error)
            return True if error.failure == "connection_refused" else None
        call.close()
        return status == _UNAVAILABLE

    def _send(
        self,
        url: str,
        path: str,
        body: bytes | None,
        headers: Sequence[tuple[str, str]],
        *,
        hold: bool = False,
        beside: ClientRequest | None = None,
        gateway: bool = False,
    ) -> Call:
        """Begin a request, on the thread of the client ``beside``; a GET without a body. AttemptError for a URL that
        cannot be asked.
        """
        call = Call(self._completions)
        try:
            trust, name = self._trust.of(url)
            call.native = self._client.send(
                *(call.number, url, path, headers, body),
                hold=hold,
                beside=beside,
                trust=trust,
                name=name,
                gateway=gateway,
            )
        except OSError as error:
            self._log(url, "a worker cannot be asked", str(error))
            raise AttemptError("unreachable") from error
        finally:
            if call.native is None:
                call.close()
        return call

    def _failed(self, url: str, error: Exception, call: Call | Held | None) -> AttemptResult:
        """Cut the connection of an attempt that one of FAILURES ended; return its outcome."""
        _cut(call)
        if isinstance(error, AttemptError):
            self._log_untrusted(url, error)
        return AttemptResult(outcome_of(error))

    def _log_untrusted(self, url: str, error: AttemptError) -> None:
        """Log why a worker's TLS is refused: the outcome says no more than unreachable."""
        if error.reason:
            self._log(url, "the certificate of a worker is refused", error.reason)

    def _log(self, url: str, problem: str, reason: str) -> None:
        """Log a problem once for each worker and reason."""
        if self._logged.get(url) != reason:
            self._logged.put(url, reason)
            logger.warning("%s: %s", problem, reason, extra={"worker": url})

    async def _read(self, url: str, native: NativeResponse, watch: Watch | None = None) -> AttemptResult:
        """Read a whole answer, or a stream up to its first event."""
        whole = native.whole()
        if whole is not None and len(whole) <= COUNTED_BYTES:  # as nearly all
            answer = Answer(native.status, native.headers, whole, native.kept)
            return AttemptResult(_judged(native.status), answer)
        response, held = readable(native), self.answers.begin(url)
        return await (_open_stream(response, held, watch) if response.streams else _whole(response, held))


def _cut(call: Call | Held | None) -> None:
    if call is not None:
        call.close()


async def _open_stream(response: WorkerResponse, held: HeldAnswerBytes, watch: Watch | None) -> AttemptResult:
    stream = AnswerStream(response, EventSplitter(MAX_EVENT_BYTES))
    if response.begins and (watch is None or watch.choices == 1):
        return AttemptResult(Outcome.FIRST_EVENT, stream=stream)  # which is no refusal
    try:
        outcome = await stream.hold(watch)
        if outcome is Outcome.FIRST_EVENT:
            return AttemptResult(outcome, stream=stream)
        answer = await _rest(stream, held) if outcome is Outcome.SERVER_ERROR else None
    except asyncio.CancelledError:
        stream.close()
        raise
    stream.close()
    return AttemptResult(outcome, answer=answer)


async def _rest(stream: AnswerStream, held: HeldAnswerBytes) -> Answer:
    """Read a stream that is only an error to its end; return it as a whole answer."""
    events = stream.first
    held.grow(sum(map(len, events)))
    while more := await stream.more():
        held.grow(sum(map(len, more)))
        events += more
    return Answer(stream.status, stream.headers, b"".join(events), held=held)


async def _whole(response: WorkerResponse, held: HeldAnswerBytes) -> AttemptResult:
    headers = response.headers
    held.grow(0, announced=response.length)
    response.begin()
    pieces: list[bytes] = []
    while piece := await response.readany():
        held.grow(len(piece))
        pieces.append(piece)
    answer = Answer(response.status, headers, b"".join(pieces), response.kept, held)
    return AttemptResult(_judged(response.status), answer=answer)


def _judged(status: int) -> Outcome:
    if status in _KEY_REFUSED:
        return Outcome.KEY_REFUSED
    failed = status >= 500 and status != 501  # 501: what one worker does not implement, none does
    return Outcome.SERVER_ERROR if failed else Outcome.ANSWERED
