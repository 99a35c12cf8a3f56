"""An application served by TLS, with a certificate that the test replaces."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.native_server import NativeServer, ServerBounds
from cachefleet_controlplane.transport.served_tls import ServedTls
from cachefleet_runtime.tls import client_context
from tests.controlplane.transport.raw_client import Connection
from tests.controlplane.transport.transports import Application
from tests.fakes.secret_volume import SecretVolume, authority, issued

NAME: Final = "gateway.test"
AUTHORITY: Final = authority()


def pair(name: str = NAME) -> dict[str, bytes]:
    """A certificate and its key."""
    return issued(AUTHORITY, name)


def trusting(*protocols: str) -> ssl.SSLContext:
    """A client's context that offers these protocols."""
    context = client_context(AUTHORITY.pem.decode())
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


@dataclass
class Secured:
    """An application that is being served by TLS, where, and with what."""

    server: NativeServer
    port: int
    volume: SecretVolume

    async def streams(
        self, context: ssl.SSLContext | None = None, name: str = NAME, **options: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection; its user closes it."""
        context = context or trusting()
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name, **options)

    async def connect(self, context: ssl.SSLContext | None = None, name: str = NAME) -> Connection:
        """A new connection for HTTP/1."""
        return Connection(*await self.streams(context, name))

    async def presents(self, name: str) -> bool:
        """Whether a handshake with this name succeeds now."""
        try:
            connection = await self.connect(name=name)
        except ssl.SSLCertVerificationError:
            return False
        connection.close()
        return True

    async def will_present(self, name: str) -> None:
        """Returns once a handshake with this name succeeds."""
        async with asyncio.timeout(30):
            while not await self.presents(name):  # noqa: ASYNC110 - what another thread does
                await asyncio.sleep(0.01)


@asynccontextmanager
async def secured(app: Application, folder: Path, **bounds: Any) -> AsyncIterator[Secured]:
    """Serve until the end of the context, which waits for the server's."""
    volume = SecretVolume(folder / "served", pair())
    tls = ServedTls(volume.folder, look_seconds=0.02)
    given = ServerBounds(**{"head_seconds": 30.0, "drain_seconds": 1.0, **bounds}, tls=tls)
    async with Completions() as completions:
        server = NativeServer(app, completions, host="127.0.0.1", port=0, bounds=given)
        serving = asyncio.create_task(server.serve())
        try:
            yield Secured(server, await server.listening(), volume)
        finally:
            server.stop()
            async with asyncio.timeout(60):
                await serving
