"""The transports that the suites run over, by name, and an application served by one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.transport.chosen_transport import Transport, choose_transport
from cachefleet_controlplane.transport.native_server import ServerBounds
from cachefleet_controlplane.transport.public_server import PublicServer, public_server
from cachefleet_core.native import Choice, lacking
from tests.controlplane.gateway.harness import Front, Worker, front
from tests.controlplane.transport.raw_client import Connection, connected

TRANSPORTS: Final = ("python", "native")
ON_THREADS: Final = "native on threads"
"""The native transport on several threads, for tests to which that makes a difference."""
HEAD_SECONDS: Final = 30.0

Application = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass
class Served:
    """An application that is being served, by which transport, and where."""

    transport: str
    server: PublicServer
    port: int

    async def connect(self) -> Connection:
        """A new connection; its user closes it."""
        return await connected(self.port)


def missing(transport: str) -> str:
    """Why a transport cannot be tried here; "" where it can."""
    return "" if transport == "python" else lacking()


def chosen(transport: str) -> Transport:
    """A transport of that name, as a context manager."""
    return choose_transport(_choice(transport), threads=4 if transport == ON_THREADS else 1)


def _choice(transport: str) -> Choice:
    return "python" if transport == "python" else "native"


def made(transport: Transport, app: Application, *, port: int = 0, **bounds: Any) -> PublicServer:
    """A server that does not serve yet, of a transport that is open; bounds as those of ``ServerBounds``."""
    given = ServerBounds(**{"head_seconds": HEAD_SECONDS, "drain_seconds": 1.0, **bounds})
    return public_server(transport, app, host="127.0.0.1", port=port, bounds=given)


@dataclass
class Gate:
    """A gateway before workers, and where it is."""

    front: Front
    port: int

    async def connect(self, *, receive_bytes: int = 0) -> Connection:
        """A new connection; its user closes it."""
        return await connected(self.port, receive_bytes=receive_bytes)


@asynccontextmanager
async def gateway(transport: str, *workers: Worker, **options: Any) -> AsyncIterator[Gate]:
    """A gateway before these workers; options as those of ``front``."""
    async with front(workers, transport=_choice(transport), **options) as made:
        yield Gate(made, int(made.url.rsplit(":", 1)[1]))


@asynccontextmanager
async def served(transport: str, app: Application, **bounds: Any) -> AsyncIterator[Served]:
    """Serve until the end of the context, which waits for the server's."""
    async with chosen(transport) as opened:
        server = made(opened, app, **bounds)
        serving = asyncio.create_task(server.serve())
        try:
            yield Served(transport, server, await server.listening())
        finally:
            server.stop()
            async with asyncio.timeout(60):
                await serving
