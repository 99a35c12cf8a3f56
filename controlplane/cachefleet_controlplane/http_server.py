"""uvicorn with bounded request heads, deadlines for slow clients and a shutdown in two steps.

Two such servers share one event loop. Shutdown: after ``leave`` connections are still taken, and each answer that
begins says ``connection: close``, so that clients with kept connections go elsewhere. ``stop`` takes no new connections
and closes idle ones, but only SETTLE_SECONDS after their last answer: uvicorn would close at once a connection that a
client may just be reusing, and that request would be lost. ``stop`` and the end of the last connection are noticed at
once, where uvicorn polls ten times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn

from cachefleet_controlplane.http_protocol import (
    HEAD_SECONDS,
    STALL_SECONDS,
    ClientTimeouts,
    ShutdownState,
    TimedProtocol,
    timed_protocol,
)
from cachefleet_controlplane.websocket_protocol import CautiousWebSocket, RefusingWebSocket

logger = logging.getLogger(__name__)

START_SECONDS: Final = 30.0
DATE_SECONDS: Final = 1.0
"""How often the value of the Date header is renewed."""
_POLL_SECONDS: Final = 0.005


class NeverListenedError(RuntimeError):
    """A server ended before it listened: its port cannot be opened, or it was stopped."""

    def __init__(self) -> None:
        super().__init__("the server stopped before it listened")


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
        """The port number, 0 of a Unix socket, once open.

        NeverListenedError where it cannot be opened or was stopped before, TimeoutError after START_SECONDS.
        """
        async with asyncio.timeout(START_SECONDS):
            while not self.started:
                if self.should_exit:
                    raise NeverListenedError
                await asyncio.sleep(_POLL_SECONDS)
        listeners = [one for server in self.servers for one in server.sockets]
        if not listeners:  # stopped as soon as it had started
            raise NeverListenedError
        return int(listeners[0].getsockname()[1]) if self.config.uds is None else 0

    @property
    def origin(self) -> str:
        """Where it is to listen."""
        return f"{'https' if self.config.is_ssl else 'http'}://{self.config.host}:{self.config.port}"

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self.server_state.connections)


def http_server(
    app: Any,
    *,
    host: str,
    port: int,
    drain_seconds: float,
    head_seconds: float = HEAD_SECONDS,
    body_seconds: float = 0.0,
    stall_seconds: float = STALL_SECONDS,
    websocket_bytes: int = 0,
    websocket: type[RefusingWebSocket] = CautiousWebSocket,
    tls: ssl.SSLContext | None = None,
    unix_socket: Path | None = None,
) -> HttpServer:
    """Make a server. Times as in ``ClientTimeouts``; ``websocket_bytes`` bounds a WebSocket message, 0 serves none.

    ``websocket`` is their protocol. ``tls`` serves HTTPS; without it the server is plain. A ``unix_socket`` is listened
    on in place of host and port.
    """
    bounds = ClientTimeouts(head_seconds=head_seconds, body_seconds=body_seconds, stall_seconds=stall_seconds)
    shutdown = ShutdownState()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        uds=None if unix_socket is None else str(unix_socket),
        http=timed_protocol(bounds, shutdown),
        ws=websocket if websocket_bytes else "none",
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
        ssl_context_factory=(lambda *_: tls) if tls else None,
    )
    return HttpServer(config, shutdown)
