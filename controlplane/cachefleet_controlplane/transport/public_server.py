"""The server of the public port, by the transport that was chosen."""

from __future__ import annotations

import socket
from typing import Any, Protocol

from cachefleet_controlplane.http_server import http_server
from cachefleet_controlplane.transport.chosen_transport import Transport
from cachefleet_controlplane.transport.native_server import NativeServer, ServerBounds


class PublicServer(Protocol):
    """A server; see ``HttpServer``."""

    @property
    def origin(self) -> str: ...
    @property
    def connections(self) -> int: ...
    def leave(self) -> None: ...
    def stop(self) -> None: ...
    async def serve(self, sockets: list[socket.socket] | None = None) -> None: ...
    async def listening(self) -> int: ...


def public_server(transport: Transport, app: Any, *, host: str, port: int, bounds: ServerBounds) -> PublicServer:
    """Make a server of an ASGI application; the transport has to be open while it serves."""
    if transport.completions is not None:
        return NativeServer(app, transport.completions, host=host, port=port, bounds=bounds)
    return http_server(
        app,
        host=host,
        port=port,
        head_seconds=bounds.head_seconds,
        drain_seconds=bounds.drain_seconds,
        websocket_bytes=bounds.websocket_bytes,
        websocket=bounds.websocket,
        tls=bounds.tls.context if bounds.tls else None,
    )
