"""One request to a worker by native code, and what comes of it: a response, or the keys of a request that it holds."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from cachefleet_native import ClientRequest, KeptBytes, StreamFilter, WorkerCall

from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.wire.headers import Header

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
END_SECONDS: Final = 0.05
"""How long the end of a stream is waited for once it is near: workers send usage and it at once."""
_NO_CONNECTION: Final = frozenset({"unreachable", "connection_refused", "untrusted"})


class AttemptError(Exception):
    """An attempt failed: ``outcome`` says how, ``failure`` is native code's name of it, ``reason`` why TLS did."""

    def __init__(self, failure: str, reason: str = "") -> None:
        super().__init__(failure, reason)
        self.outcome: Final = Outcome.UNREACHABLE if failure in _NO_CONNECTION else Outcome(failure)
        self.failure: Final = failure
        self.reason: Final = reason


class Call:
    """One request; ``native`` is native code's, until the answer has ended or the request is cut."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        self._waiting: asyncio.Future[Any] | None = None
        self.number: Final = completions.expect(self._complete)
        self.native: WorkerCall | None = None

    async def response(self) -> NativeResponse:
        """Return the worker's response, which comes next. As ``next``."""
        return NativeResponse(self, await self.next())

    async def held(self) -> HeldKeys | NativeResponse:
        """Return the held request whose keys come next, or the worker's response. As ``next``."""
        completion = await self.next()
        return HeldKeys(Held(self), *completion) if len(completion) == 1 else NativeResponse(self, completion)

    async def next(self) -> Any:
        """Return the next completion, a tuple; a failure, or that nobody waits any more, cancels the request.

        AttemptError.
        """
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            completion: Any = await self._waiting
        except asyncio.CancelledError:
            self.close()
            raise
        if isinstance(completion[0], str):
            self.close()
            raise AttemptError(*completion)
        return completion

    def close(self) -> None:
        """Cut the connection, unless the answer has ended."""
        if self.native is not None:
            self.native.cancel()
        self.over()

    def over(self) -> None:
        """Nothing more comes of the request."""
        self._completions.forget(self.number)
        self.native = None

    def _complete(self, completion: Any) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(completion)


class Held:
    """A request that a worker holds, until it is told to answer or its connection is cut."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._free = True

    def take(self) -> bool:
        """Whether it can be answered: once."""
        free, self._free = self._free, False
        return free

    def drop(self) -> None:
        """Have the worker drop the request, where it is not to be answered."""
        if self.take():
            self.close()

    def close(self) -> None:
        """Cut the connection: the worker drops the request."""
        self._call.close()

    async def answered(self, members: bytes = b"") -> NativeResponse:
        """Have the worker answer; return its response once it is whole or, of a stream, the first bytes are here.

        ``members`` of the body may come late, as JSON. AttemptError, also where it was cut before.
        """
        if self._call.native is None:
            raise AttemptError(Outcome.LOST)
        self._call.native.go(members)
        return await self._call.response()


class HeldKeys(NamedTuple):
    """A held request, and the document of its block keys."""

    held: Held
    keys: bytes


Beginning = tuple[str, str, int, str, bytes]
"""Id, object, created and model of an answer, and the prompt's ids as JSON."""


class Trail(NamedTuple):
    """What was relayed of a recorded stream: its record, one part a line; number and digest of the events."""

    record: bytes = b""
    events: int = 0
    digest: int = 0
    unkept: str = ""
    """Why there is no record, as a code; "" where it is kept."""


class Relayed(NamedTuple):
    """What a relay by native code leaves."""

    events: list[bytes]
    """Whole events from the first that is not ordinary, as far as they came with it."""
    rest: bytes
    """The bytes after them."""
    ended: bool
    """Nothing more comes of the worker."""
    failure: str
    """Why not; "" where its answer is whole."""
    gone: bool
    """The client is gone, or takes nothing."""
    ids: list[int]
    """Produced token ids in what was passed on, where notes were asked for."""
    text: str
    """Produced text in it."""
    finish: str = ""
    """Why the choice has ended, where its end was passed on and notes were asked for."""
    whole: bool = False
    """The client's answer is whole, and was ended."""
    beginning: Beginning | None = None
    """What the stream's first events told, where they were relayed and notes were asked for."""
    trail: tuple[bytes, int, int, str] = Trail()
    """As ``Trail``, of a recorded stream."""


Completion = tuple[int, tuple[Header, ...], str, bytes, int, bytes, bool, bool, bool]
"""Status, headers for the client, what the worker keeps of the conversation, content codings, the announced length, the
part of the body that has come, whether that is all, whether it is a stream of events, and begins as an ordinary one."""


class NativeResponse:
    """A worker's response, and its content; ``headers`` are those that a client may see, until ``begin``.

    ``kept`` is what the worker keeps of the conversation, "" for nothing; ``coding`` and ``length`` are of its
    body, b"" and 0 where nothing is said.
    """

    __slots__ = (
        *("_call", "_data", "_ended", "_failure", "_one", "begins", "coding", "headers"),
        *("kept", "length", "status", "streams"),
    )

    def __init__(self, call: Call, completion: Completion) -> None:
        self.status, self.headers, self.kept, self.coding, self.length, data, ended, streams, begins = completion
        self._call = call
        self._data, self._ended = data, ended
        self._failure = ""
        self._one = True
        self.streams = streams
        """It is a stream of events."""
        self.begins = begins
        """What has come is the ordinary beginning of a stream, with a token; it may be relayed unread."""
        if ended:
            call.over()

    def whole(self) -> bytes | None:
        """Its body, where that is plain, no stream, and all here; else None."""
        return self._data if self._ended and not self.streams and not self.coding else None

    async def readany(self) -> bytes:
        """Return the next part of the body; b"" at its end. AttemptError."""
        if self._failure:
            raise AttemptError(self._failure)
        if not self._data and not self._ended and self._call.native is not None:
            self._call.native.more(one=self._one)
            self._data, self._ended = await self._call.next()
            if self._ended:
                self._call.over()
        return self.take()

    def take(self) -> bytes:
        """Return the part of the body that has come; b"" where none has."""
        data, self._data, self.begins = self._data, b"", False
        return data

    def relay(
        self,
        client: ClientRequest,
        through: StreamFilter,
        opening: tuple[int, list[Header]] | None,
        piece: bytes,
        begun: bytes,
        *,
        first: bool,
        notes: bool,
        kept: KeptBytes | None = None,
        max_record_bytes: int = 0,
        send_seconds: float,
    ) -> None:
        """Have native code relay events to a client through a filter, until there are others: ``relayed`` tells.

        First it sends ``piece``, with the ``opening`` of an answer that has not begun. ``begun``: the first bytes of
        an event, or the ``first`` events, where the answer ``begins``. With ``notes`` it relays ordinary events and
        notes what they add, until none has come for some seconds, else all but errors and what an engine gives up;
        with ``kept`` it notes the record of a stream, as far as there is room for it, and what it relays.
        What follows the end of the choice comes with that, where it comes within END_SECONDS; an ordinary end is
        relayed, too. Not to be called where the answer has ended.
        """
        if self._call.native is None:
            raise RuntimeError("the answer has ended")
        self._call.native.relay(
            client,
            through,
            opening,
            piece,
            begun,
            first=first,
            notes=notes,
            kept=kept,
            max_record_bytes=max_record_bytes,
            max_event_bytes=MAX_EVENT_BYTES,
            send_seconds=send_seconds,
            end_seconds=END_SECONDS,
        )

    async def relayed(self) -> Relayed:
        """What the relay leaves that was begun."""
        try:
            relayed = Relayed(*await self._call.next())
        except AttemptError:  # a defect
            relayed = Relayed([], b"", ended=True, failure="lost", gone=False, ids=[], text="")
        if relayed.ended:
            self._ended, self._failure = True, relayed.failure
            self._call.close()
        return relayed

    @property
    def ended(self) -> bool:
        """Nothing more comes of it than what is here."""
        return self._ended

    def begin(self) -> None:
        """Read all that has come at once, from now on; before, it is one event, so that the others can be relayed.

        The headers are kept no longer.
        """
        self._one, self.headers = False, ()

    def silent_seconds(self) -> float:
        """How long nothing has come of the worker while this is relayed; 0 once all has."""
        return self._call.native.silent_seconds if self._call.native is not None else 0.0

    def pause(self) -> None:
        """Have native code relay nothing more of it after what comes next, until it is told to."""
        if self._call.native is not None:
            self._call.native.pause()

    def cut(self) -> None:
        """Cut the connection, also while the answer is relayed: whoever reads it is told that it broke off."""
        if self._call.native is not None:
            self._call.native.cut()

    def close(self) -> None:
        """Cut the connection, unless the answer has ended: that frees the worker."""
        self._call.close()
