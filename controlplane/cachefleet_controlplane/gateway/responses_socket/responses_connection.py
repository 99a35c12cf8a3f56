"""One client's WebSocket connection, from acceptance to close: its requests, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.responses_socket.create_event import create_body, create_scope
from cachefleet_controlplane.gateway.responses_socket.event_messages import EventMessages
from cachefleet_controlplane.gateway.responses_socket.message_queue import End, Item, MessageQueue
from cachefleet_controlplane.gateway.responses_socket.response_memory import ResponseMemory
from cachefleet_controlplane.gateway.responses_socket.socket_limits import SocketLimits
from cachefleet_controlplane.transport.client_websocket import LEAVING
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import NAMES
from cachefleet_controlplane.wire.http_exchange import ClientGoneError, Receive, Reply, Scope, Send

Serve = Callable[[Scope, Receive, Send], Awaitable[None]]
"""The gateway as an ASGI application of HTTP."""

CLOSE_SECONDS: Final = 5.0
"""How long a client may take to read what comes before the close."""


@dataclass(frozen=True, slots=True)
class SocketClose:
    """Why a connection ends, in the word that metrics use; how it is closed, where the client is still there."""

    word: str
    code: int = 0
    reason: str = ""


_GONE: Final = SocketClose("gone")
_FAILED: Final = SocketClose("failed", 1011, "an answer could not be ended")
_ENDS: Final = {
    End.GONE: _GONE,
    End.RESTART: SocketClose("restart", 1012, "the server restarts: connect again"),
    End.FLOOD: SocketClose("flood", 1008, "too many messages wait"),
}


class ResponsesConnection:
    """Serves one connection, which the application has not accepted yet."""

    def __init__(
        self,
        handshake: Scope,
        receive: Receive,
        send: Send,
        *,
        serve: Serve,
        messages: MessageQueue,
        memory: ResponseMemory,
        limits: SocketLimits,
    ) -> None:
        self._handshake = handshake
        self._receive = receive
        self._send = send
        self._serve = serve
        self._messages = messages
        self._memory = memory
        self._limits = limits
        self._gone = asyncio.Event()

    async def run(self) -> str:
        """Serve the connection to its end; the word for why it ended."""
        await self._send({"type": "websocket.accept", "headers": list(self._handshake.get(NAMES, ()))})
        reading = asyncio.create_task(self._read())
        try:
            farewell = await self._answer_all()
        finally:
            reading.cancel()
            self._messages.clear()
            self._memory.forget()
        if farewell.code:
            await self._close(farewell)
        return farewell.word

    async def _read(self) -> None:
        """Take messages as they come, so that a disconnect is seen at once."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.receive":
                self._messages.put(message.get("text"))
                continue
            if message["type"] != LEAVING:
                self._gone.set()
                self._messages.finish(End.GONE)
                return
            self._messages.finish(End.RESTART)

    async def _answer_all(self) -> SocketClose:
        clock = asyncio.get_running_loop().time
        end = clock() + self._limits.seconds
        while True:
            try:
                async with asyncio.timeout(min(self._limits.idle_seconds, end - clock())):
                    item = await self._messages.take()
            except TimeoutError:
                return await self._too_long(over=clock() >= end)
            if item is None:
                return _ENDS[self._messages.end or End.GONE]
            if (farewell := await self._answer(item)) is not None:
                return farewell

    async def _answer(self, item: Item) -> SocketClose | None:
        """Answer one message; why the connection ends, if it does."""
        answer = EventMessages(self._send)
        if isinstance(item, ApiError):
            await self._refuse(item, answer)
        else:
            body = create_body(item.body, self._gone)
            await self._serve(create_scope(self._handshake, self._memory), body, answer)
        if answer.ended:
            return None
        return _GONE if answer.stuck or self._gone.is_set() else _FAILED

    async def _refuse(self, error: ApiError, answer: EventMessages) -> None:
        with suppress(ClientGoneError):
            await Reply(answer, seconds=self._limits.send_seconds, path=Endpoint.RESPONSES).error(error)

    async def _too_long(self, *, over: bool) -> SocketClose:
        if not over:
            return SocketClose("idle", 1001, f"nothing was asked for {self._limits.idle_seconds:g} s: connect again")
        limit = f"A connection may be open for {self._limits.seconds:g} s. Open another one to go on."
        error = ApiError(400, limit, code="websocket_connection_limit_reached")
        await self._refuse(error, EventMessages(self._send))
        return SocketClose("limit", 1001, "it was open for too long: connect again")

    async def _close(self, farewell: SocketClose) -> None:
        with suppress(TimeoutError, OSError, RuntimeError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send({"type": "websocket.close", "code": farewell.code, "reason": farewell.reason})
