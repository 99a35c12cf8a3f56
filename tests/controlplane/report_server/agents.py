"""A reports endpoint on a real socket, and an agent that says what it is told to."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from cachefleet_controlplane.internal_auth.authorizer import Authorization, Reporter
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.report_server.report_limits import ReportLimits
from cachefleet_controlplane.report_server.server import ReportsServer
from cachefleet_core.report_frames import (
    MAX_FRAME_BYTES,
    SUBPROTOCOL,
    Hello,
    ReadFrame,
    UpFrame,
    decode_down,
    encode,
)
from tests.controlplane.fleets import LiveFleet, fleet_of
from tests.controlplane.transport.transports import served

TOKEN = "sesame"


@dataclass
class Endpoint:
    """What a test looks at."""

    fleet: LiveFleet
    metrics: Metrics
    server: ReportsServer
    url: str
    http: aiohttp.ClientSession
    asked: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def agent(self, token: str = TOKEN, **options: Any) -> AsyncIterator["Agent"]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.http.ws_connect(self.url, headers=headers, protocols=(SUBPROTOCOL,), **options) as ws:
            yield Agent(ws)


@dataclass
class Agent:
    ws: aiohttp.ClientWebSocketResponse

    async def say(self, *frames: UpFrame) -> None:
        for frame in frames:
            await self.ws.send_bytes(encode(frame))

    async def hear(self) -> ReadFrame:
        return decode_down(await self.ws.receive_bytes(timeout=40))

    async def end(self) -> int | None:
        """The code with which the other side closes."""
        async with asyncio.timeout(40):
            async for _ in self.ws:
                pass
        return self.ws.close_code


@dataclass
class Doorkeeper:
    """An authorizer of one token, of this pod, good for workers called demo-something; "stranger" is no agent's."""

    pod: str = ""

    async def agent(self, token: str) -> Authorization:
        return {TOKEN: Authorization.ALLOWED, "stranger": Authorization.FORBIDDEN}.get(
            token, Authorization.UNAUTHENTICATED
        )

    async def reports(self, token: str, hello: Hello) -> Reporter | None:
        return Reporter(self.pod) if token == TOKEN and hello.worker.startswith("demo-") else None


@asynccontextmanager
async def reports_endpoint(fleet: LiveFleet | None = None, *, pod: str = "", **limits: Any) -> AsyncIterator[Endpoint]:
    """Lets in who bears TOKEN, which is of ``pod``, and is called demo-something."""
    fleet, metrics = fleet or fleet_of("demo-0", "demo-1"), Metrics()

    server = ReportsServer(fleet, Doorkeeper(pod), metrics, limits=ReportLimits(**limits))
    bounds: dict[str, Any] = {"drain_seconds": 0, "websocket_bytes": MAX_FRAME_BYTES, "taps": fleet.taps}
    async with served(server, **bounds) as web, aiohttp.ClientSession() as http:
        yield Endpoint(fleet, metrics, server, f"http://127.0.0.1:{web.port}/v1/reports", http)
