"""uvicorn's WebSocket protocol for clients: nothing is read before they are let in, and messages have deadlines.

uvicorn bounds a message's bytes, but neither how long it may take nor what all unfinished ones hold together, and its
shutdown breaks off answers under way. Here a slow message ends its connection (1008), so does one for which there is
no room (1013) or that comes in too many pieces (1009), and the application is told of a shutdown by a message of type
LEAVING. A client that does not answer pings stays: some do so only while they wait for an event.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from websockets.frames import Frame
from websockets.http11 import Request

from cachefleet_controlplane.transport.websocket_protocol import RefusingWebSocket

LEAVING: Final = "websocket.leaving"
"""Type of the message that tells the application that the server stops."""
MAX_FRAGMENTS: Final = 65_536
POLICY, TOO_BIG, LATER = 1008, 1009, 1013
"""Close codes of RFC 6455 and its registry."""
_WHOLE, _STALL = "whole", "stall"


@dataclass(slots=True)
class UnfinishedMessages:
    """Bytes of messages that have begun and not ended, over all connections of a server."""

    limit: int
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBounds:
    """How long a message may take from its first byte to its last, and between two pieces, in seconds."""

    seconds: float
    stall_seconds: float
    unfinished: UnfinishedMessages = field(default_factory=lambda: UnfinishedMessages(256 * 1024 * 1024))


class ClientWebSocket(RefusingWebSocket):
    """The protocol; made by ``client_websocket``."""

    bounds: ClassVar[MessageBounds]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ping_timeout = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._fragment_bytes = 0
        self._pending = 0

    def handle_connect(self, event: Request) -> None:
        """Read nothing more until the application accepts."""
        super().handle_connect(event)
        if not self.handshake_complete and not self.transport.is_closing():
            self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        """Send; reading begins once the connection is accepted."""
        await super().send(message)
        if message["type"] == "websocket.accept" and not self.transport.is_closing():
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, then count what it holds of a message that has not ended."""
        super().data_received(data)
        if self.transport.is_closing():
            self._hold(0)
            return
        self._hold(len(self.conn.reader.buffer) + self._fragment_bytes)
        if self.bounds.unfinished.held > self.bounds.unfinished.limit:
            self._fail(LATER, "too many bytes of messages are under way")
        elif len(self.frames) > MAX_FRAGMENTS:
            self._fail(TOO_BIG, f"a message may have {MAX_FRAGMENTS} fragments")

    def handle_cont(self, event: Frame) -> None:
        """Count a fragment."""
        self._fragment_bytes += len(event.data)
        super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        """Count a message's beginning."""
        self._fragment_bytes = len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """As ``handle_text``."""
        self._fragment_bytes = len(event.data)
        super().handle_bytes(event)

    def send_receive_event_to_app(self) -> None:
        """A message is whole; what comes next has its own time."""
        self._fragment_bytes = 0
        self._disarm()
        super().send_receive_event_to_app()

    def shutdown(self) -> None:
        """The server stops: the application ends the connection, after an answer under way."""
        if self.handshake_complete and not self.close_sent:
            leaving: Any = {"type": LEAVING}
            self.queue.put_nowait(leaving)
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what is held."""
        self._hold(0)
        super().connection_lost(exc)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The application is done: a client that does not read what is left is cut off."""
        super().on_task_complete(task)
        self.loop.call_later(self.close_timeout, self.transport.abort)

    def _hold(self, size: int) -> None:
        self.bounds.unfinished.held += size - self._pending
        self._pending = size
        if not size:
            self._disarm()
            return
        if _WHOLE not in self._timers:
            reason = f"a message did not arrive within {self.bounds.seconds:g} s"
            self._timers[_WHOLE] = self.loop.call_later(self.bounds.seconds, self._fail, POLICY, reason)
        if (stall := self._timers.pop(_STALL, None)) is not None:
            stall.cancel()
        reason = f"nothing of a message arrived for {self.bounds.stall_seconds:g} s"
        self._timers[_STALL] = self.loop.call_later(self.bounds.stall_seconds, self._fail, POLICY, reason)

    def _disarm(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _fail(self, code: int, reason: str) -> None:
        self._hold(0)
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()


def client_websocket(bounds: MessageBounds) -> type[ClientWebSocket]:
    """A protocol class with these bounds: uvicorn takes a class, not an instance."""
    return type("ServerWebSocket", (ClientWebSocket,), {"bounds": bounds})
