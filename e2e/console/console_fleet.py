"""What the browser looks at: a control plane with two fake engines and real agents, or a fleet that is made up."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from starlette.applications import Starlette
from starlette.routing import Mount

from cachefleet_controlplane.admin.admin_app import PATH, admin_app
from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.console.console_app import Console
from cachefleet_controlplane.http_server import HttpServer, http_server
from cachefleet_controlplane.internal_auth.authorizer import Access
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.usage_log import SqlUsage, UsageLog
from cachefleet_controlplane.tenants.directory import Tenants
from tests.controlplane.fleet.test_worker_churn import fleet
from tests.controlplane.gateway.harness import INDEX_KEY, MODEL, POOL, WORKER_KEY, engine
from tests.controlplane.test_control_plane import Plane
from tests.fakes.big_fleet import BigFleet
from tests.fakes.decisions import InMemoryDecisions
from tests.fakes.engine import FakeEngine

TOKEN: Final = "for-people"
CHAT: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Watched:
    """A control plane with two workers, and what a client of its gateway does."""

    plane: Plane
    engines: tuple[FakeEngine, FakeEngine]

    async def chat(self, text: str, *, key: str = "") -> tuple[int, str]:
        """Status and decision id of a chat with that text."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2}
        url = self.plane.gateway + CHAT
        async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-cachefleet-decision", "")

    async def link(self) -> str:
        """A link that signs in once."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        url = f"{self.plane.internal}/console/sign-in-links"
        async with aiohttp.ClientSession() as http, http.post(url, headers=headers) as answer:
            return self.plane.internal + str((await answer.json())["path"])

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of the admin API's answer."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession() as http:
            url = f"{self.plane.internal}/admin/v1{path}"
            async with http.request(method, url, json=body, headers=headers) as answer:
                return await answer.json() if answer.content_type.endswith("json") else None


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[Watched]:
    """All of it, with its files in ``folder``."""
    told = _agent_settings(folder)
    options: dict[str, Any] = {"plugin": True, "num_blocks": 400, "index_key": INDEX_KEY, "inter_token_seconds": 0.002}
    async with (
        engine(**options) as first,
        engine(**options) as second,
        fleet(folder, told, first, second, replicas=1) as ((plane,), _),
    ):
        yield Watched(plane, (first, second))


def _agent_settings(folder: Path) -> dict[str, Any]:
    (folder / "index.key").write_text(base64.urlsafe_b64encode(INDEX_KEY).decode())
    (folder / "worker.key").write_text(WORKER_KEY)
    return {
        "pool": POOL,
        "index_key_file": folder / "index.key",
        "worker_key_file": folder / "worker.key",
        "http_host": "127.0.0.1",
        "http_port": 0,
        "poll_seconds": 0.2,
        "weights": "fake",
    }


class _Anybody:
    """Lets the right token do everything."""

    async def __call__(self, token: str, _asked: object) -> Access:
        return Access.ALLOWED if token == TOKEN else Access.UNAUTHENTICATED


@asynccontextmanager
async def pictured(folder: Path, shown: BigFleet, *, port: int = 0) -> AsyncIterator[str]:
    """The console over a fleet that is made up; its address."""
    metrics = Metrics()
    with closing(Database(f"sqlite:///{folder / 'x.db'}", timeout_seconds=5)) as database:
        tenants = Tenants(SqlTenants(database), metrics=metrics, poll_seconds=60)
        service = TenantService(tenants, SqlTenants(database), b"h" * 32)
        usage = UsageLog(SqlUsage(database), metrics=metrics, wall_clock=service.wall_clock)
        decisions = DecisionLog(InMemoryDecisions(max_rows=100), metrics=metrics)
        allowed = _Anybody()
        admin = admin_app(shown, decisions, service=service, usage=usage, explain=_nothing, authorize=allowed)
        console = Console(shown, admin=admin, authorize=allowed)
        app = Starlette(routes=[Mount(PATH, admin), Mount("/console", console)])
        server = http_server(app, host="127.0.0.1", port=port, head_seconds=10, drain_seconds=1)
        async with _served(server) as address:
            yield address
            console.end_streams()


async def _nothing(_body: bytes, _tenant: str | None = None, /) -> Any:
    raise NotImplementedError


@asynccontextmanager
async def _served(server: HttpServer) -> AsyncIterator[str]:
    serving = asyncio.create_task(server.serve())
    try:
        yield f"http://127.0.0.1:{await server.listening()}"
    finally:
        server.stop()
        await serving
