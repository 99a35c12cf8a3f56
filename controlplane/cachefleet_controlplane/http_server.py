"""uvicorn with deadlines for slow clients and a shutdown in two steps; two such servers share one event loop.

uvicorn bounds neither how long a new connection may be silent nor how long a request's head or body may take. Here a
connection is closed that has not sent a whole head in time, or, where the application leaves that to the server, whose
body stalls or takes too long; between requests uvicorn's own keep-alive bound holds. A client that is answered before
its body is in, with the connection's end announced, can still read that answer: the server half-closes and discards
input for LINGER_SECONDS.

Shutdown: after ``leave`` connections are still taken, and each answer that begins says ``connection: close``, so that
clients with kept connections go elsewhere. ``stop`` takes no new connections and closes idle ones, but only
SETTLE_SECONDS after their last answer: uvicorn would close at once a connection that a client may just be reusing, and
that request would be lost. ``stop`` and the end of the last connection are noticed at once, where uvicorn polls ten
times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

logger = logging.getLogger(__name__)

START_SECONDS: Final = 30.0
LINGER_SECONDS: Final = 2.0
"""How long a client that is still sending may take to read its answer."""
SETTLE_SECONDS: Final = 1.0
"""How long an idle connection stays open after the server stops, for a request already on its way."""
DATE_SECONDS: Final = 1.0
"""How often the value of the Date header is renewed."""
_POLL_SECONDS: Final = 0.005
_HEAD, _BODY, _STALL, _END = "head", "body", "stall", "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """How long a client may take, in seconds: for a request's head, for its body, and between two pieces of a body.

    ``body_seconds`` 0: the application bounds bodies itself.
    """

    head_seconds: float
    body_seconds: float = 0.0
    stall_seconds: float = 10.0


@dataclass(slots=True)
class ShutdownState:
    """How far a server's shutdown has come; shared by all its connections."""

    leaving: bool = False
    stopping: bool = False


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which closes the connections of slow clients; made by ``timed_protocol``."""

    bounds: ClassVar[ClientTimeouts]
    server_shutdown: ClassVar[ShutdownState]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._answering: RequestResponseCycle | None = None
        self._lingering = False

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

    def on_headers_complete(self) -> None:
        """End the head deadline and start that of the body."""
        self._disarm(_HEAD)
        before = self._answering
        super().on_headers_complete()
        self._answering = self.cycle
        if self.cycle is before:
            return  # it becomes a WebSocket
        self.cycle.transport = _Ending(self.transport, self.end)  # type: ignore[assignment] # see there
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
        if self._answering is None or not self._answering.more_body or not self.transport.can_write_eof():
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


class _Ending:
    """The transport that one answer writes to; its ``close`` lets the protocol decide how the connection ends."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self._transport = transport
        self.write = transport.write  # called for each event; other attributes go through __getattr__
        self.close = end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def timed_protocol(bounds: ClientTimeouts, shutdown: ShutdownState) -> type[TimedProtocol]:
    """A protocol class with these bounds: uvicorn takes a class, not an instance."""
    return type("ServerProtocol", (TimedProtocol,), {"bounds": bounds, "server_shutdown": shutdown})


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals to ``__main__``; end it with ``leave``, if time allows, and ``stop``."""

    def __init__(self, config: uvicorn.Config, shutdown: ShutdownState) -> None:
        super().__init__(config)
        self._shutdown = shutdown
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    def leave(self) -> None:
        """From now on every answer that begins says ``connection: close``; new connections are still taken."""
        self._shutdown.leaving = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, TimedProtocol):
                connection.leave()

    def stop(self) -> None:
        """Take no new connections; answers under way may take ``drain_seconds`` of ``http_server`` more."""
        self.leave()
        self._shutdown.stopping = True
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Renew the Date header each second until ``stop``; uvicorn's loop polls ten times a second."""
        while not await self.on_tick(0):  # 0: the tick that renews the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), DATE_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - as uvicorn's
        """Close listeners and idle connections, wait for answers under way, cancel those that take too long."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._ended()
        except TimeoutError:
            self._give_up()

    async def _ended(self) -> None:
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn's own sets
            await asyncio.sleep(_POLL_SECONDS)
        for server in self.servers:
            await server.wait_closed()

    def _give_up(self) -> None:
        logger.error("answers were still under way when the time to stop was over: %d", len(self.server_state.tasks))
        for task in self.server_state.tasks:
            task.cancel("the server stops")

    async def listening(self) -> int:
        """The port number, once open. RuntimeError where it cannot be opened, TimeoutError after START_SECONDS."""
        async with asyncio.timeout(START_SECONDS):
            while not self.started:
                if self.should_exit:
                    raise RuntimeError("the server stopped before it listened")
                await asyncio.sleep(_POLL_SECONDS)
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port


def http_server(
    app: Any,
    *,
    host: str,
    port: int,
    head_seconds: float,
    drain_seconds: float,
    body_seconds: float = 0.0,
    stall_seconds: float = 10.0,
    websocket_bytes: int = 0,
) -> HttpServer:
    """Make a server. Times as in ``ClientTimeouts``; ``websocket_bytes`` bounds a WebSocket message, 0 serves none."""
    bounds = ClientTimeouts(head_seconds=head_seconds, body_seconds=body_seconds, stall_seconds=stall_seconds)
    shutdown = ShutdownState()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=timed_protocol(bounds, shutdown),
        ws="websockets-sansio" if websocket_bytes else "none",
        ws_max_size=max(websocket_bytes, 1),
        ws_per_message_deflate=False,
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(head_seconds)),
        timeout_graceful_shutdown=max(1, round(drain_seconds)),
        backlog=2048,
    )
    return HttpServer(config, shutdown)
