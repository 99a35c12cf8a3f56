"""What an attempt brings: a worker's whole answer, a stream of events read one by one, or the outcome of a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.gateway.send.answer_budget import HeldAnswerBytes, NoRoomError
from cachefleet_controlplane.gateway.send.answers.answer import error_code
from cachefleet_controlplane.gateway.send.answers.gate_refusals import Watch
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_call import MAX_EVENT_BYTES, AttemptError, Held, NativeResponse
from cachefleet_controlplane.wire.content_encoding import CONTENT_ENCODING, Inflater, UndecodableError, codings_of
from cachefleet_controlplane.wire.headers import Header
from cachefleet_runtime.sse import EventSplitter, StreamTooLargeError, event_data, is_end, is_prelude

MAX_HELD_EVENTS: Final = 1024
"""Events without a token that are held back, at most; then the stream goes to the client all the same."""
_SUCCESS: Final = 200


class InflatedResponse:
    """A response whose body somebody has compressed, though none was asked for; read as if it had not been."""

    begins = False
    """Native code relays nothing of it."""

    def __init__(self, response: NativeResponse, codings: Sequence[bytes]) -> None:
        """UndecodableError for codings that are not understood."""
        self._response = response
        self._inflater = Inflater(codings)
        self.status, self.kept, self.length = response.status, response.kept, response.length
        self.streams = response.streams
        self.headers = tuple(field for field in response.headers if field[0] != CONTENT_ENCODING)

    async def readany(self) -> bytes:
        """Return the next part of the body; b"" at its end. UndecodableError."""
        await asyncio.sleep(0)  # a little may become much: others have their turn in between
        while not (piece := self._inflater.take()):
            data = await self._response.readany()
            if not data and not self._inflater.whole:
                raise AttemptError(Outcome.LOST)
            if not data:
                return b""
            self._inflater.feed(data)
        return piece

    def begin(self) -> None:
        """Read all that has come at once, from now on; the headers are kept no longer."""
        self.headers = ()
        self._response.begin()

    def pause(self) -> None:
        """Nothing has to be done: native code relays none of it."""

    def cut(self) -> None:
        """Cut the connection: to whoever reads it, it breaks off."""
        self._response.cut()

    def close(self) -> None:
        """Cut the connection."""
        self._response.close()


WorkerResponse = NativeResponse | InflatedResponse
"""A worker's response whose head has been read."""


def readable(response: NativeResponse) -> WorkerResponse:
    """Return a response whose body can be read. UndecodableError where that is compressed in a way that is not
    understood.
    """
    if not response.coding:
        return response  # as nearly all
    codings = codings_of([(CONTENT_ENCODING, response.coding)])
    return InflatedResponse(response, codings) if codings else response


class Answer(Struct, frozen=True):
    """A worker's whole answer, with the headers that a client may see."""

    status: int
    headers: tuple[Header, ...]
    body: bytes
    kept: str = ""
    """What the worker keeps of the conversation, as its header says; "" for nothing."""
    held: HeldAnswerBytes | None = None
    """What it takes of the budget of answers, for as long as anything refers to it."""


class AnswerStream:
    """A worker's answer that has begun, read event by event; ``first`` are those already read, until ``more`` is."""

    def __init__(self, response: WorkerResponse, splitter: EventSplitter) -> None:
        self.response = response
        self._splitter = splitter
        self.status, self.kept = response.status, response.kept
        self.first: list[bytes] = []
        self.done = False
        """The last event that a client waits for has been read; the connection may still be open."""
        self.outcome: Outcome | None = None
        """Why the stream ended; None while it goes on."""

    @property
    def headers(self) -> tuple[Header, ...]:
        """Those that a client may see, until the stream is relayed."""
        return self.response.headers

    async def hold(self, watch: Watch | None = None) -> Outcome:
        """Read until an event is here that has data and is no prelude (see ``sse.is_prelude``).

        With a ``watch``: until it has decided, which may be that the worker's gate refused the request.
        """
        held, begun, size = list[bytes](), False, 0
        while self.outcome is None and not begun and len(held) < MAX_HELD_EVENTS and size <= MAX_EVENT_BYTES:
            events = await self.more()
            begun = _begun(events, watch)
            held += events
            size += sum(map(len, events))
        self.first = held
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
        self.first = events = list[bytes]()  # whoever has taken the first ones keeps them no longer than need be
        while not events and self.outcome is None:
            try:
                data = await self.response.readany()
                events = list(self._splitter.feed(data)) if data else self._end()
            except FAILURES as error:
                outcome = outcome_of(error)
                self.outcome = Outcome.FINISHED if self.done and outcome in _BREAKS else outcome
        return self._note_end(events)

    def begun(self) -> bytes:
        """Return the first bytes of the next event, which somebody else goes on to read; ``left`` by them."""
        return self._splitter.take_rest()

    def left(self, events: list[bytes], rest: bytes) -> list[bytes]:
        """Return the next events, given those that somebody else has left, and the bytes after them."""
        return self._note_end([*events, *self._splitter.feed(rest)] if rest else events)

    def _note_end(self, events: list[bytes]) -> list[bytes]:
        self.done = self.done or any(map(is_end, events))
        return events

    def _end(self) -> list[bytes]:
        self.outcome = Outcome.FINISHED
        return [self._splitter.rest] if self._splitter.rest else []

    def pause(self) -> None:
        """Have whoever reads it look between two events what becomes of it."""
        self.response.pause()

    def cut(self) -> None:
        """Cut the connection of an answer that is being read: to whoever reads it, it breaks off."""
        self.response.cut()

    def close(self) -> None:
        """Cut the connection unless the answer has ended: that frees the worker at once."""
        self.response.close()


class AttemptResult(Struct, frozen=True):
    """The result of an attempt so far: its outcome, and at most one of answer and stream."""

    outcome: Outcome
    answer: Answer | None = None
    stream: AnswerStream | None = None
    held: Held | None = None
    """A request that the worker has rendered and holds; ``keys`` is the document of its block keys."""
    keys: bytes = b""

    @property
    def succeeded(self) -> bool:
        """The worker answers with status 200, or would."""
        begun = self.answer or self.stream
        return self.held is not None or (begun is not None and begun.status == _SUCCESS)

    @property
    def kept(self) -> str:
        """What the worker keeps of the conversation; "" for nothing."""
        begun = self.answer or self.stream
        return "" if begun is None else begun.kept


def _begun(events: Sequence[bytes], watch: Watch | None) -> bool:
    """Whether enough of a stream is here to know what to do with it."""
    if watch is None:
        return any(event_data(event) and not is_prelude(event) for event in events)
    for event in events:
        watch.feed(event)
    return watch.decided or any(map(error_code, events))


FAILURES: Final = (AttemptError, StreamTooLargeError, NoRoomError, UndecodableError, TimeoutError)
"""Exceptions that end an attempt."""
_BREAKS: Final = frozenset({Outcome.LOST, Outcome.SILENT})
"""What is no failure once the last event that a client waits for has been read."""


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome of an attempt that one of FAILURES ended."""
    match error:
        case AttemptError():
            return error.outcome
        case StreamTooLargeError():
            return Outcome.OVERSIZED
        case NoRoomError():
            return Outcome.CROWDED
        case UndecodableError():
            return Outcome.UNDECODABLE
        case _:
            return Outcome.SILENT
