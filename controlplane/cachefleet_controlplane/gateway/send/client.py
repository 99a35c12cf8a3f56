"""HTTP client of the workers: one attempt; errors become outcomes, a stream's first event is held back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from cachefleet_controlplane.gateway.send.answer_budget import AnswerBudget, HeldAnswerBytes
from cachefleet_controlplane.gateway.send.answers.gate_refusals import Watch
from cachefleet_controlplane.gateway.send.native_sender import NativeSender
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import (
    FAILURES,
    Answer,
    AnswerStream,
    AttemptResult,
    WorkerResponse,
    outcome_of,
    plugin_header,
    readable,
)
from cachefleet_controlplane.gateway.send.worker_call import MAX_EVENT_BYTES, Held, HeldKeys, NativeResponse
from cachefleet_controlplane.gateway.send.worker_tls import WorkerTls
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.wire.headers import answer_headers
from cachefleet_core.continuation import CONVERSATION_HEADER
from cachefleet_runtime.sse import EventSplitter

_KEY_REFUSED: Final = frozenset({401, 403})
CONNECT_SECONDS: Final = 2.0
"""How long connecting to a worker may take."""
_LOOK_AGAIN_SECONDS: Final = 0.05
_EVENT_STREAM: Final = "text/event-stream"


class Upstream:
    """The gateway's one HTTP client; a context manager. Bounds are in seconds.

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
        self._sender = NativeSender(completions, connect_seconds=connect_seconds, idle_seconds=idle_seconds, tls=tls)
        self.answers = AnswerBudget()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._sender.close()

    async def open(
        self,
        url: str,
        path: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]],
        watch: Watch | None = None,
        beside: Any = None,
    ) -> AttemptResult:
        """Send a request; return a whole answer, a stream with its first event, or the outcome of a failure.

        With a ``watch`` a stream is held back until it has decided. ``beside``: the native request of the client that
        the answer is for.
        """
        response: NativeResponse | None = None
        try:
            response = await self._sender.post(url, path, body, headers=headers, beside=beside)
            return await _read(response, self.answers.begin(url), watch)
        except asyncio.CancelledError:
            _cut(response)
            raise
        except FAILURES as error:
            return _failed(error, response)

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
        response: NativeResponse | None = None
        try:
            async with asyncio.timeout(seconds):
                began = await self._sender.hold(url, path, body, headers=headers, beside=beside)
                if isinstance(began, HeldKeys):
                    return AttemptResult(Outcome.ANSWERED, held=began.held, keys=began.keys)
                response = began
                return await _read(response, self.answers.begin(url))
        except asyncio.CancelledError:
            _cut(response)
            raise
        except FAILURES as error:
            return _failed(error, response)

    async def go(self, held: Held, *, url: str, members: bytes = b"", watch: Watch | None = None) -> AttemptResult:
        """Have the worker at a URL answer the request that it holds; as ``open``.

        ``members`` of the body may come late, as JSON.
        """
        try:
            return await _read(await held.answered(members), self.answers.begin(url), watch)
        except asyncio.CancelledError:
            _cut(held)
            raise
        except FAILURES as error:
            return _failed(error, held)

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
                while (ended := await self._sender.ended(url)) is None:  # noqa: ASYNC110 # nobody tells when it is known
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                return ended
        return False


def _failed(error: Exception, response: NativeResponse | Held | None) -> AttemptResult:
    """Cut the connection of an attempt that one of FAILURES ended; return its outcome."""
    _cut(response)
    return AttemptResult(outcome_of(error))


def _cut(response: NativeResponse | Held | None) -> None:
    if response is not None:
        response.close()


async def _read(native: NativeResponse, held: HeldAnswerBytes, watch: Watch | None = None) -> AttemptResult:
    """Read a whole answer, or a stream up to its first event."""
    response = readable(native)
    if response.content_type == _EVENT_STREAM and response.status == 200:
        return await _open_stream(response, held, watch)
    return await _whole(response, held)


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
    headers = answer_headers(response.raw_headers)
    kept = plugin_header(response, CONVERSATION_HEADER)
    length = response.headers.get("content-length", "")
    held.grow(0, announced=int(length) if length.isdecimal() else 0)
    response.begin()
    pieces: list[bytes] = []
    while piece := await response.content.readany():
        held.grow(len(piece))
        pieces.append(piece)
    answer = Answer(response.status, headers, b"".join(pieces), kept, held)
    return AttemptResult(_judged(response.status), answer=answer)


def _judged(status: int) -> Outcome:
    if status in _KEY_REFUSED:
        return Outcome.KEY_REFUSED
    failed = status >= 500 and status != 501  # 501: what one worker does not implement, none does
    return Outcome.SERVER_ERROR if failed else Outcome.ANSWERED
