"""uvicorn as the control plane runs it: two servers in one loop, signals handled once, no client that dawdles.

uvicorn bounds neither how long a new connection may be silent nor how long a request's head may take. Here a
connection without a whole head in time is closed; between requests uvicorn's own keep-alive bound holds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.005


class HeadDeadlineProtocol(HttpToolsProtocol):
    """Closes a connection whose request head is not whole after ``head_seconds``; see ``head_deadline``."""

    head_seconds: ClassVar[float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        # Data while nothing is being answered belongs to a head, also bytes the parser skips before it.
        if self._deadline is None and (self._answering is None or self._answering.response_complete):
            self._arm()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._disarm()
        super().on_headers_complete()
        self._answering = self.cycle

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def head_deadline(seconds: float) -> type[HeadDeadlineProtocol]:
    """The protocol class with its bound: uvicorn takes a class, not an instance."""
    return type("HeadDeadlineProtocol", (HeadDeadlineProtocol,), {"head_seconds": seconds})


class HttpServer(uvicorn.Server):
    """A server that leaves signals to ``__main__``; end it with ``stop``."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Take no new connections; answers under way may go on until the bound given to ``http_server``."""
        self.should_exit = True

    async def listening(self) -> int:
        """The port, once it is open. RuntimeError where it does not open."""
        async with asyncio.timeout(START_SECONDS):
            while not self.started:
                if self.should_exit:
                    raise RuntimeError("the server stopped before it listened")
                await asyncio.sleep(_POLL_SECONDS)
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port


def http_server(
    app: Any, *, host: str, port: int, head_seconds: float, drain_seconds: float, websocket_bytes: int = 0
) -> HttpServer:
    """``websocket_bytes`` bounds a WebSocket message; 0 serves no WebSockets."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=head_deadline(head_seconds),
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
    return HttpServer(config)
