"""Sends requests to workers by native code, off Python's event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cachefleet_controlplane.gateway.upstream.aiohttp_sender import KEEP_ALIVE_SECONDS, AiohttpSender
from cachefleet_controlplane.gateway.upstream.answer_budget import COUNTED_BYTES
from cachefleet_controlplane.gateway.upstream.held_answer import HeldKeys
from cachefleet_controlplane.gateway.upstream.worker_answer import MAX_EVENT_BYTES, WorkerResponse
from cachefleet_controlplane.gateway.upstream.worker_tls import NativeTrust, WorkerTls
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.wire.content_encoding import UndecodableError
from cachefleet_controlplane.wire.headers import Header
from cachefleet_core.native import MODULE
from cachefleet_runtime.sse import StreamTooLargeError

if TYPE_CHECKING:  # it may not be installed
    from cachefleet_native import ClientRequest, StreamFilter, WorkerCall, WorkerClient

Fields = list[tuple[bytes, bytes]]
END_SECONDS: Final = 0.05
"""How long the end of a stream is waited for once it is near: workers send usage and it at once."""


class NativeSender:
    """Connections of native threads; what they do not send goes to ``others``: odd URLs, and workers whose TLS they do
    not accept, which OpenSSL judges, and tells why. Bounds in seconds.
    """

    def __init__(
        self,
        completions: Completions,
        others: AiohttpSender,
        *,
        connect_seconds: float,
        idle_seconds: float,
        tls: WorkerTls | None = None,
    ) -> None:
        self._completions = completions
        self._others = others
        self._trust = None if tls is None else NativeTrust(tls)
        self._client: WorkerClient = import_module(MODULE).WorkerClient(
            completions.native,
            connect_seconds=connect_seconds,
            idle_seconds=idle_seconds,
            keep_alive_seconds=KEEP_ALIVE_SECONDS,
            max_whole_bytes=COUNTED_BYTES,
        )

    def close(self) -> None:
        """Close the connections that wait for a request."""
        self._client.close()

    async def post(
        self,
        url: str,
        path: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]],
        beside: ClientRequest | None = None,
    ) -> WorkerResponse:
        """Send a request; return its response once it is whole or, of a stream, the first bytes are here.

        It is sent on the thread of the client ``beside``. A body over COUNTED_BYTES is read on demand. OSError;
        StreamTooLargeError.
        """
        told = self._begin(self._client.post, url, path, body, headers=headers, beside=beside)
        try:
            if told is not None:
                return await told.response()
        except _RefusedError:
            self._refused(url)
        return await self._others.post(url, path, body, headers=headers)

    async def hold(
        self,
        url: str,
        path: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]],
        beside: ClientRequest | None = None,
    ) -> HeldKeys | WorkerResponse:
        """Send a request that the worker renders and holds; as ``post`` where it answers at once. UndecodableError."""
        told = self._begin(self._client.hold, url, path, body, headers=headers, beside=beside)
        try:
            if told is not None:
                return await told.held()
        except _RefusedError:
            self._refused(url)
        return await self._others.hold(url, path, body, headers=headers)

    def _begin(
        self,
        send: Callable[..., WorkerCall],
        url: str,
        path: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]],
        beside: ClientRequest | None,
    ) -> _Told | None:
        """Have native code send a request; None for one that it does not send."""
        told = _Told(self._completions)
        try:
            trust, name = (None, "") if self._trust is None else self._trust.of(url)
            told.call = send(told.number, url, path, headers, body, beside, trust, name)
        except ValueError:
            told.close()
            return None
        return told

    def _refused(self, url: str) -> None:
        if self._trust is not None:
            self._trust.refused(url)


class _RefusedError(Exception):
    """Native code does not accept a worker's TLS; nothing was sent."""


class _Told:
    """What native code tells of one request, one after the other."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        self._waiting: asyncio.Future[Any] | None = None
        self.number: Final = completions.expect(self._tell)
        self.call: WorkerCall | None = None

    async def response(self) -> NativeResponse:
        """Return the worker's response, which is told next. As ``next``."""
        return self._response(await self.next())

    async def held(self) -> HeldKeys | NativeResponse:
        """Return the held request whose keys are told next, or the worker's response. As ``next``."""
        told = await self.next()
        return HeldKeys(NativeHeld(self), *told) if len(told) == 1 else self._response(told)

    def _response(self, told: Any) -> NativeResponse:
        status, fields, data, ended, begins = told
        return NativeResponse(self, status, fields, data=data, ended=ended, begins=begins)

    async def next(self) -> Any:
        """Return what is told next, a tuple; a failure, or that nobody waits any more, cancels the request."""
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            told: Any = await self._waiting
        except asyncio.CancelledError:
            self.close()
            raise
        if isinstance(told, str):
            self.close()
            raise _error(told)
        return told

    def close(self) -> None:
        """Cut the connection, unless the answer has ended."""
        self._completions.forget(self.number)
        if self.call is not None:
            self.call.cancel()
            self.call = None

    def _tell(self, told: Any) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(told)


class NativeHeld:
    """A request that a worker holds, on a connection of native code."""

    def __init__(self, told: _Told) -> None:
        self._told = told
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
        self._told.close()

    async def answered(self, members: bytes = b"") -> NativeResponse:
        """Have the worker answer, with late ``members``; return its response as ``NativeSender.post`` does.

        ConnectionError where it was cut before.
        """
        if self._told.call is None:
            raise ConnectionError("the request is held no more")
        self._told.call.go(members)
        return await self._told.response()


Beginning = tuple[str, str, int, str, bytes]
"""Id, object, created and model of an answer, and the prompt's ids as JSON."""


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


class NativeResponse:
    """A WorkerResponse of native code, and its content."""

    def __init__(
        self, told: _Told, status: int, fields: Fields, *, data: bytes, ended: bool, begins: bool = False
    ) -> None:
        self._told = told
        self.begins = begins and not ended
        """What has come is the ordinary beginning of a stream, with a token; it may be relayed unread."""
        self._data = data
        self._ended = ended
        self._failure = ""
        self._one = True
        self.status = status
        self.raw_headers = fields
        self._first = dict(reversed(fields))
        """The first header of each name."""
        if ended:
            told.close()

    @property
    def headers(self) -> NativeResponse:
        """Where headers are looked up."""
        return self

    @property
    def content(self) -> NativeResponse:
        """Where the body is read."""
        return self

    @property
    def content_type(self) -> str:
        """Its type, without parameters."""
        return self.get("content-type", "").partition(";")[0].strip().lower()

    def get(self, name: str, default: str) -> str:
        """The first header of a name, which has any case."""
        found = self._first.get(_field_name(name))
        return default if found is None else found.decode(errors="surrogateescape")

    async def readany(self) -> bytes:
        """Return the next part of the body; b"" at its end. OSError."""
        if self._failure:
            raise _error(self._failure)
        if not self._data and not self._ended and self._told.call is not None:
            self._told.call.more(one=self._one)
            self._data, self._ended = await self._told.next()
            if self._ended:
                self._told.close()
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
        send_seconds: float,
    ) -> None:
        """Have native code relay events to a client through a filter, until there are others: ``relayed`` tells.

        First it sends ``piece``, with the ``opening`` of an answer that has not begun. ``begun``: the first bytes of an
        event, or the ``first`` events, where the answer ``begins``. With ``notes`` it relays ordinary events and notes
        what they add, else all but errors and what an engine gives up. What follows the end of the choice comes with
        that, where it comes within END_SECONDS; an ordinary end is relayed, too. Not to be called where the answer has
        ended.
        """
        if self._told.call is None:
            raise RuntimeError("the answer has ended")
        self._told.call.relay(
            client,
            through,
            opening,
            piece,
            begun,
            first=first,
            notes=notes,
            max_event_bytes=MAX_EVENT_BYTES,
            send_seconds=send_seconds,
            end_seconds=END_SECONDS,
        )

    async def relayed(self) -> Relayed:
        """What the relay leaves that was begun."""
        try:
            relayed = Relayed(*await self._told.next())
        except ConnectionError:  # a defect
            relayed = Relayed([], b"", ended=True, failure="lost", gone=False, ids=[], text="")
        if relayed.ended:
            self._ended, self._failure = True, relayed.failure
            self._told.close()
        return relayed

    @property
    def ended(self) -> bool:
        """Nothing more comes of it than what is here."""
        return self._ended

    def begin(self) -> None:
        """Read all that has come at once, from now on; before, it is one event, so that the others can be relayed.

        The headers are kept no longer.
        """
        self._one = False
        self.raw_headers, self._first = [], {}

    def silent_seconds(self) -> float:
        """How long nothing has come of the worker while this is relayed."""
        return self._told.call.silent_seconds if self._told.call is not None else math.inf

    def cut(self) -> None:
        """Cut the connection, also while the answer is relayed: whoever reads it is told that it broke off."""
        if self._told.call is not None:
            self._told.call.cut()

    def release(self) -> None:
        """Nothing: the connection was given back when the answer ended."""

    def close(self) -> None:
        """Cut the connection, unless the answer has ended: that frees the worker."""
        self._told.close()


@lru_cache
def _field_name(name: str) -> bytes:
    """A header's name as native code gives it."""
    return name.lower().encode()


def _error(failure: str) -> Exception:
    match failure:
        case "unreachable":
            return ConnectionRefusedError("no connection to the worker")
        case "refused":
            return _RefusedError("the worker's TLS is not accepted")
        case "silent":
            return TimeoutError("the worker is silent")
        case "oversized":
            return StreamTooLargeError("an answer that is too long")
        case "undecodable":
            return UndecodableError("a held request that is compressed")
        case _:
            return ConnectionError("the worker's answer broke off")
