"""uvicorn behind a Unix socket: serves the WebSockets that the native server passes on.

``stop`` and the end of the last connection are noticed at once, where uvicorn polls ten times a second. Heads, their
deadlines and all other requests are the native server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn

from cachefleet_controlplane.transport.listening_sockets import START_SECONDS, NeverListenedError
from cachefleet_controlplane.transport.websocket_protocol import RefusingWebSocket

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.005


class WebSocketServer(uvicorn.Server):
    """A server of messages of ``message_bytes`` at most, by ``protocol``; end it with ``stop``."""

    def __init__(
        self,
        app: Any,
        path: Path,
        *,
        drain_seconds: float,
        message_bytes: int,
        protocol: type[RefusingWebSocket],
    ) -> None:
        config = uvicorn.Config(
            app,
            uds=str(path),
            ws=protocol,
            ws_max_size=message_bytes,
            ws_per_message_deflate=False,
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=max(1, round(drain_seconds)),
        )
        super().__init__(config)
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    def stop(self) -> None:
        """Take no new connections; those that are open may take ``drain_seconds`` more."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Wait for ``stop``."""
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - as uvicorn's
        """Close the listener, wait for the ends of connections, cancel those that take too long."""
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
        logger.error("WebSockets were still open when the time to stop was over: %d", len(self.server_state.tasks))
        for task in self.server_state.tasks:
            task.cancel("the server stops")

    async def listening(self) -> None:
        """Return once it listens. NeverListenedError where it was stopped before, TimeoutError after START_SECONDS."""
        async with asyncio.timeout(START_SECONDS):
            while not self.started:
                if self.should_exit:
                    raise NeverListenedError
                await asyncio.sleep(_POLL_SECONDS)
