"""The console, mounted as it is served, over a frozen fleet and the real admin API; what others add to it is said."""

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from cachefleet_controlplane.console.console_app import PATH
from cachefleet_controlplane.console.console_routes import console_parts, console_routes
from cachefleet_controlplane.console.visit import ConsoleParts
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_log import DecisionLog
from tests.controlplane.admin.conftest import TOKEN, Doorkeeper, Still
from tests.controlplane.admin.served_admin import admin_over
from tests.fakes.decisions import InMemoryDecisions

HOST = "127.0.0.1:8081"
ORIGIN = f"http://{HOST}"


class Said:
    """The admin API; ``answers`` by method and path come before it, ``asked`` keeps what came for these."""

    def __init__(self, admin: FastAPI) -> None:
        self._admin = admin
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.asked: list[tuple[str, str, str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix("/admin/v1")
        found = self.answers.get((scope["method"], path))
        if found is None:
            await self._admin(scope, receive, send)
            return
        body = (await receive())["body"]
        query = scope["query_string"].decode()
        self.asked.append((scope["method"], path, query, msgspec.json.decode(body) if body else None))
        await send({"type": "http.response.start", "status": found[0], "headers": []})
        await send({"type": "http.response.body", "body": msgspec.json.encode(found[1])})


@pytest.fixture
def fleet() -> Still:
    return Still()


@pytest.fixture
def doorkeeper() -> Doorkeeper:
    return Doorkeeper()


@pytest.fixture
def decisions() -> DecisionLog:
    return DecisionLog(InMemoryDecisions(max_rows=100), metrics=Metrics())


@pytest.fixture
async def admin(fleet: Still, decisions: DecisionLog, doorkeeper: Doorkeeper, tmp_path: Path) -> AsyncIterator[Said]:
    with closing(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=0.5)) as database:
        yield Said(admin_over(database, fleet=fleet, decisions=decisions, authorize=doorkeeper))


@pytest.fixture
def parts(fleet: Still, admin: Said, doorkeeper: Doorkeeper) -> ConsoleParts:
    return console_parts(fleet, admin=admin, authorize=doorkeeper)


@pytest.fixture
async def visitor(parts: ConsoleParts) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that has not signed in."""
    served = Starlette(routes=[Mount(PATH, console_routes(parts))])
    transport = httpx.ASGITransport(app=served)
    async with httpx.AsyncClient(transport=transport, base_url=f"{ORIGIN}{PATH}") as client:
        client.headers["origin"] = ORIGIN
        yield client


@pytest.fixture
async def browser(visitor: httpx.AsyncClient) -> httpx.AsyncClient:
    """A browser that has."""
    assert (await visitor.post("/sign-in", data={"token": TOKEN})).status_code == 303
    return visitor


@pytest.fixture
def csrf(browser: httpx.AsyncClient, parts: ConsoleParts) -> str:
    """What forms of the browser's session carry."""
    session = parts.sessions.find(next(iter(browser.cookies.values())))
    assert session
    return session.csrf
