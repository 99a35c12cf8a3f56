"""One request over the native transport: as an ASGI scope with its ``receive`` and ``send``, and its answer.

The gateway answers by ``NativeReply``, without ASGI's messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, Protocol
from urllib.parse import unquote

from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.http_exchange import (
    DEPARTURE,
    WHOLE_BODY,
    BodyRefusedError,
    ClientGoneError,
    Departure,
    Message,
    Reply,
    Scope,
    Send,
    WholeBody,
)

EXCHANGE: Final = "cachefleet.exchange"
"""Member of an ASGI scope: its ``NativeExchange``, where the native transport serves it."""

Piece = tuple[bytes, bool]
"""A piece of a body, and whether it is the last."""
Told = Piece | int | None
"""What comes of a body: a piece, the status of one that is not taken, or None where the client is gone."""


class ClientRequest(Protocol):
    """The native module's ``ClientRequest``."""

    @property
    def key(self) -> int: ...
    @property
    def relayed(self) -> bool: ...
    def scope(self) -> dict[str, Any]: ...
    def read(self, number: int) -> None: ...
    def answer(self, status: int, headers: list[Header], body: bytes) -> None: ...
    def start(self, status: int, headers: list[Header], piece: bytes) -> bool: ...
    def write(self, piece: bytes) -> bool: ...
    def end(self, piece: bytes) -> None: ...
    def room(self, number: int) -> None: ...
    def finish(self) -> None: ...


class NativeExchange:
    """One request and its answer; ``left`` says that the client is gone, ``close`` that nobody answers any more."""

    __slots__ = ("_body", "_reply", "_seconds", "_whole", "completions", "departure", "request", "task")

    def __init__(self, request: ClientRequest, completions: Completions, *, seconds: float) -> None:
        self.request: Final = request
        self.completions: Final = completions
        self.departure: Final = Departure()
        self.task: asyncio.Task[None] | None = None
        self._seconds = seconds
        self._reply: NativeReply | None = None
        self._body: _Body | None = None
        self._whole: WholeBody | None = None

    def scope(self) -> Scope:
        """ASGI's, and what the gateway takes from it; made once, and not kept here, since it refers to this object."""
        scope = self.request.scope()
        if WHOLE_BODY in scope:
            self._whole = scope[WHOLE_BODY] = WholeBody(scope[WHOLE_BODY])
        scope[DEPARTURE], scope[EXCHANGE] = self.departure, self
        if "%" in scope["path"]:
            scope["path"] = unquote(scope["path"])
        return scope

    def left(self) -> None:
        """The client is gone, which changes nothing where a relay has sent all of its answer."""
        if self.request.relayed:
            return
        self.departure.happen()
        if self._body is not None:
            self._body.wake()

    def close(self) -> None:
        """End what has no end yet."""
        body, self._body = self._body, None
        if body is not None:
            body.close()
        if self._reply is None or not self._reply.ended:
            self.request.finish()
        self._reply = None

    def reply(self, seconds: float, path: str) -> NativeReply:
        """Make the answer; called once."""
        self._reply = NativeReply(self, seconds=seconds, path=path)
        return self._reply

    async def receive(self) -> Message:
        """ASGI's: the body, at once where it is there, then the disconnect."""
        if self._body is None:
            whole = None if self._whole is None else self._whole.take()
            self._body = _Body(self, over=self._whole is not None)
            if whole is not None:
                return {"type": "http.request", "body": whole, "more_body": False}
        return await self._body.receive()

    async def send(self, message: Message) -> None:
        """ASGI's: what is sent to a client that is gone is dropped."""
        reply = self._reply or self.reply(self._seconds, "")
        try:
            if message["type"] == "http.response.start":
                await reply.start(message["status"], message.get("headers", ()))
            elif message.get("more_body"):
                await reply.write(message.get("body", b""))
            else:
                await reply.end(message.get("body", b""))
        except ClientGoneError:
            self.left()


class _Body:
    """Reads the body of a request; ``over``: there is none to be read."""

    __slots__ = ("_asked", "_exchange", "_number", "_over", "_piece", "_waiting")

    def __init__(self, exchange: NativeExchange, *, over: bool) -> None:
        self._exchange = exchange
        self._number = 0
        self._asked, self._over = False, over
        self._piece: Piece | int | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def receive(self) -> Message:
        if self._over:
            return await self._disconnect()
        piece = await self._next()
        if piece is None:
            return {"type": "http.disconnect"}
        self._over = piece[1]
        return {"type": "http.request", "body": piece[0], "more_body": not piece[1]}

    async def _disconnect(self) -> Message:
        while not self._exchange.departure.happened:
            await self._change()
        return {"type": "http.disconnect"}

    async def _next(self) -> Piece | None:
        """None where the client is gone. A piece that nobody waited for any more is there for the next who asks.

        BodyRefusedError.
        """
        if not self._number:
            self._number = self._exchange.completions.expect(self._receive_piece)
        if not self._asked:
            try:
                self._exchange.request.read(self._number)
            except BrokenPipeError:
                return None
            self._asked = True
        while self._piece is None:
            if self._exchange.departure.happened:
                return None
            await self._change()
        self._asked, piece, self._piece = False, self._piece, None
        if isinstance(piece, int):
            raise BodyRefusedError(piece)
        return piece

    def _receive_piece(self, piece: Told) -> None:
        self._piece = piece
        if piece is None:
            self._exchange.left()
        self.wake()

    async def _change(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        if self._number:
            self._exchange.completions.forget(self._number)


class NativeReply(Reply):
    """An answer by the native transport: a head goes with what follows at once, a whole answer in one piece."""

    def __init__(self, exchange: NativeExchange, *, seconds: float, path: str) -> None:
        super().__init__(exchange.send, seconds=seconds, path=path)
        self.native = exchange.request
        self._exchange = exchange
        self._head: tuple[int, list[Header]] | None = None

    async def _begin(self, status: int, headers: Iterable[Header]) -> None:
        """Send status and headers, with the first piece of the body where that follows at once."""
        self._head = status, [*headers, *self.names]
        asyncio.get_running_loop().call_soon(self._flush)

    def take_head(self) -> tuple[int, list[Header]] | None:
        """The head that is not sent yet, for whoever sends it with what follows; None where it is."""
        head, self._head = self._head, None
        return head

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; returns once the client has taken enough."""
        head, self._head = self._head, None
        try:
            room = self.native.write(data) if head is None else self.native.start(*head, data)
        except BrokenPipeError as error:
            raise ClientGoneError from error
        if not room:
            await self._room()

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece of the body, none where a relay has."""
        self.ended = True
        head, self._head = self._head, None
        try:
            if head is None:
                self.native.end(data)
            else:
                self.native.answer(*head, data)
        except BrokenPipeError as error:
            raise ClientGoneError from error

    async def _answer(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole answer; the transport adds its content-length."""
        self.ended = True
        try:
            self.native.answer(status, [*headers, *self.names], body)
        except BrokenPipeError as error:
            raise ClientGoneError from error

    def _flush(self) -> None:
        if self._head is None:
            return
        head, self._head = self._head, None
        try:
            self.native.start(*head, b"")
        except BrokenPipeError:
            self._exchange.left()

    async def _room(self) -> None:
        there: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        completions = self._exchange.completions

        def receive_room(room: bool) -> None:  # noqa: FBT001 - as a completion comes
            if not there.done():
                there.set_result(room)

        number = completions.expect(receive_room)
        try:
            self.native.room(number)
            async with asyncio.timeout(self._seconds):
                room = await there
        except (TimeoutError, BrokenPipeError) as error:
            raise ClientGoneError from error
        finally:
            completions.forget(number)
        if not room:
            raise ClientGoneError


def reply_of(scope: Scope, send: Send, *, seconds: float) -> Reply:
    """The answer to a request, by the transport that serves it; ``seconds`` as those of ``Reply``."""
    exchange: NativeExchange | None = scope.get(EXCHANGE)
    if exchange is None:
        return Reply(send, seconds=seconds, path=scope["path"])
    return exchange.reply(seconds, scope["path"])
