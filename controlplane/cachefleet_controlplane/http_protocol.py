"""uvicorn's HTTP protocol with deadlines for slow clients and a shutdown in two steps.

uvicorn bounds neither how long a new connection may be silent nor how long a request's head or body may take. Here a
connection is closed that has not sent a whole head in time, or, where the application leaves that to the server, whose
body stalls or takes too long; between requests uvicorn's own keep-alive bound holds. A client that is answered before
its body is in, with the connection's end announced, can still read that answer: the server half-closes and discards
input for LINGER_SECONDS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from cachefleet_controlplane.http_heads import BoundedHeads
from cachefleet_controlplane.wire.http_exchange import DEPARTURE, Departure

HEAD_SECONDS: Final = 10.0
"""How long a client may take for the whole head of a request."""
STALL_SECONDS: Final = 10.0
"""How long a client may send nothing of a body that has begun."""
LINGER_SECONDS: Final = 2.0
"""How long a client that is still sending may take to read its answer."""
SETTLE_SECONDS: Final = 1.0
"""How long an idle connection stays open after the server stops, for a request already on its way."""
_JOINED_BYTES: Final = 64 * 1024
"""A larger piece is not copied behind its head."""
_HEAD, _BODY, _STALL, _END = "head", "body", "stall", "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """How long a client may take, in seconds: for a request's head, for its body, and between two pieces of a body.

    ``body_seconds`` 0: the application bounds bodies itself.
    """

    head_seconds: float = HEAD_SECONDS
    body_seconds: float = 0.0
    stall_seconds: float = STALL_SECONDS


@dataclass(slots=True)
class ShutdownState:
    """How far a server's shutdown has come; shared by all its connections."""

    leaving: bool = False
    stopping: bool = False


class TimedProtocol(BoundedHeads):
    """uvicorn's HTTP protocol, which closes the connections of slow clients; made by ``timed_protocol``."""

    bounds: ClassVar[ClientTimeouts]
    server_shutdown: ClassVar[ShutdownState]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._answering: RequestResponseCycle | None = None
        self._lingering = False
        self._departure = Departure()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        """Start the deadline for the first request's head."""
        super().connection_made(transport)
        self._arm(_HEAD, self._head_seconds)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; starts the head deadline at a request's first byte and renews that of a stalled body."""
        if self._lingering:
            return
        # Data while nothing is being answered belongs to a head, also bytes the parser skips before it.
        if _HEAD not in self._timers and (self._answering is None or self._answering.response_complete):
            self._arm(_HEAD, self._head_seconds)
        if _STALL in self._timers:
            self._arm(_STALL, self.bounds.stall_seconds)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Have the application know when its client leaves: requests of one connection are served one by one."""
        super().on_message_begin()
        self.scope[DEPARTURE] = self._departure  # type: ignore[typeddict-unknown-key] # a member of our own

    def on_headers_complete(self) -> None:
        """End the head deadline and start that of the body."""
        self._disarm(_HEAD)
        before = self._answering
        super().on_headers_complete()
        self._answering = self.cycle
        if self.cycle is before:
            return  # it becomes a WebSocket
        self.cycle.transport = _AnswerTransport(self.loop, self.transport, self.end)  # type: ignore[assignment] # see there
        self.leave()
        if before is None or before.response_complete:
            self._await_body()

    def on_message_complete(self) -> None:
        """End the deadlines of the body."""
        self._disarm(_BODY, _STALL)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """End the deadlines of the body; start those of a pipelined request."""
        self._disarm(_BODY, _STALL)
        super().on_response_complete()
        self._await_body()  # of a request that was sent before this answer

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all deadlines."""
        self._disarm(*self._timers)
        super().connection_lost(exc)
        self._departure.happen()

    def leave(self) -> None:
        """If the server leaves, have an answer that has not begun say ``connection: close``."""
        if self.server_shutdown.leaving and self._answering is not None and not self._answering.response_started:
            self._answering.keep_alive = False

    def shutdown(self) -> None:
        """The server stops: close when idle; an answer that has begun keeps the headers it has sent."""
        self.timeout_keep_alive = SETTLE_SECONDS  # type: ignore[assignment] # seconds of a timer
        if self._answering is not None and not self._answering.response_complete:
            self.leave()
        elif _HEAD in self._timers:
            self._arm(_HEAD, SETTLE_SECONDS)
        elif not self._lingering:
            self._settle()

    def _settle(self) -> None:
        """Close an idle connection, SETTLE_SECONDS after its last answer."""
        idle = self.timeout_keep_alive_task
        if idle is None:
            self.transport.close()
            return
        answered_at = idle.when() - self.config.timeout_keep_alive
        idle.cancel()
        self.timeout_keep_alive_task = self.loop.call_at(
            max(self.loop.time(), answered_at + SETTLE_SECONDS), self.timeout_keep_alive_handler
        )

    @property
    def _head_seconds(self) -> float:
        return SETTLE_SECONDS if self.server_shutdown.stopping else self.bounds.head_seconds

    def end(self) -> None:
        """Close after a final answer: at once, or LINGER_SECONDS later where the client is still sending."""
        if self._answering is None or not self._answering.more_body:
            self.transport.close()
        else:
            self.half_close()

    def half_close(self) -> None:
        """Say that nothing more comes, and discard input for LINGER_SECONDS, so that the client reads its answer."""
        if not self.transport.can_write_eof():
            self.transport.close()
        elif not self._lingering and not self.transport.is_closing():
            self._lingering = True
            self.transport.write_eof()
            self._arm(_END, LINGER_SECONDS)

    def _await_body(self) -> None:
        if self.bounds.body_seconds and self.cycle.more_body and not self.cycle.response_complete:
            self._arm(_BODY, self.bounds.body_seconds)
            self._arm(_STALL, self.bounds.stall_seconds)

    def _arm(self, timer: str, seconds: float) -> None:
        self._disarm(timer)
        self._timers[timer] = self.loop.call_later(seconds, self.transport.close)

    def _disarm(self, *timers: str) -> None:
        for timer in timers:
            if (armed := self._timers.pop(timer, None)) is not None:
                armed.cancel()


class _AnswerTransport:
    """The transport that one answer writes to; its ``close`` lets the protocol decide how the connection ends.

    What is written first, the head, goes with what follows at once: two packets cost a client two turns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self._loop = loop
        self._transport = transport
        self._end = end
        self._head = b""
        self.write: Callable[[bytes], None] = self._hold  # called for each event; others go through __getattr__

    def close(self) -> None:
        """End the answer."""
        self._flush()
        self._end()

    def _hold(self, data: bytes) -> None:
        self._head, self.write = data, self._join
        self._loop.call_soon(self._flush)

    def _join(self, data: bytes) -> None:
        if len(data) > _JOINED_BYTES:
            self._flush()
        head, self._head, self.write = self._head, b"", self._transport.write
        self.write(head + data if head else data)

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._join(b"")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def timed_protocol(bounds: ClientTimeouts, shutdown: ShutdownState) -> type[TimedProtocol]:
    """A protocol class with these bounds: uvicorn takes a class, not an instance."""
    return type("ServerProtocol", (TimedProtocol,), {"bounds": bounds, "server_shutdown": shutdown})
