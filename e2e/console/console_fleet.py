"""What the browser looks at: a control plane with two fake engines and real agents, or a fleet that is made up."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from starlette.routing import Mount

from cachefleet_controlplane.console.console_app import Console
from cachefleet_controlplane.internal_auth.authorizer import Authorization
from cachefleet_controlplane.store.database import Database
from tests.controlplane.admin.served_admin import admin_over, listening, mounted
from tests.controlplane.fleet.test_worker_churn import fleet
from tests.controlplane.gateway.harness import INDEX_KEY, MODEL, POOL, WORKER_KEY, engine
from tests.controlplane.wiring.test_control_plane import Plane
from tests.fakes.big_fleet import BigFleet
from tests.fakes.engine import FakeEngine

TOKEN: Final = "for-people"
CHAT: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Watched:
    """A control plane with two workers, and what a client of its gateway does."""

    plane: Plane
    engines: tuple[FakeEngine, FakeEngine]

    async def chat(self, text: str, *, key: str = "", stream: bool = False) -> tuple[int, str]:
        """Status and decision id of a chat with that text."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2, "stream": stream}
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

    async def __call__(self, token: str, _asked: object) -> Authorization:
        return Authorization.ALLOWED if token == TOKEN else Authorization.UNAUTHENTICATED


@asynccontextmanager
async def pictured(folder: Path, shown: BigFleet, *, port: int = 0) -> AsyncIterator[str]:
    """The console over a fleet that is made up; its address."""
    with closing(Database(f"sqlite:///{folder / 'x.db'}", timeout_seconds=5)) as database:
        allowed = _Anybody()
        admin = admin_over(database, fleet=shown, authorize=allowed)
        console = Console(shown, admin=admin, authorize=allowed)
        async with listening(mounted(admin, Mount(Console.path, console)), port=port) as at:
            yield f"http://127.0.0.1:{at}"
            console.end_streams()
