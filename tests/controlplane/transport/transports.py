"""An application, or a gateway, served by the native transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.native_server import NativeServer, ServerBounds
from tests.controlplane.gateway.harness import Front, Worker, front
from tests.controlplane.transport.raw_client import Connection, connected

HEAD_SECONDS: Final = 30.0

Application = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass
class Served:
    """An application that is being served, and where."""

    server: NativeServer
    port: int

    async def connect(self) -> Connection:
        """A new connection; its user closes it."""
        return await connected(self.port)


def made(
    completions: Completions, app: Application, *, host: str = "127.0.0.1", port: int = 0, **bounds: Any
) -> NativeServer:
    """A server that does not serve yet; bounds as those of ``ServerBounds``."""
    given = ServerBounds(**{"head_seconds": HEAD_SECONDS, "drain_seconds": 1.0, **bounds})
    return NativeServer(app, completions, host=host, port=port, bounds=given)


@dataclass
class Gate:
    """A gateway before workers, and where it is."""

    front: Front
    port: int

    async def connect(self, *, receive_bytes: int = 0) -> Connection:
        """A new connection; its user closes it."""
        return await connected(self.port, receive_bytes=receive_bytes)


@asynccontextmanager
async def gateway(*workers: Worker, **options: Any) -> AsyncIterator[Gate]:
    """A gateway before these workers; options as those of ``front``."""
    async with front(workers, **options) as made:
        yield Gate(made, int(made.url.rsplit(":", 1)[1]))


@asynccontextmanager
async def served(app: Application, *, threads: int = 1, **bounds: Any) -> AsyncIterator[Served]:
    """Serve until the end of the context, which waits for the server's."""
    async with Completions(threads=threads) as opened:
        server = made(opened, app, **bounds)
        serving = asyncio.create_task(server.serve())
        try:
            yield Served(server, await server.listening())
        finally:
            server.stop()
            async with asyncio.timeout(60):
                await serving
