"""The admin API, mounted as it is served, over a frozen fleet and a log in memory."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from cachefleet_controlplane.admin.access import Access, AccessUnavailableError, Asked
from cachefleet_controlplane.admin.app import PATH, admin_app
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.routing import RoutingPolicy
from cachefleet_controlplane.store.decisions import DecisionLog
from cachefleet_controlplane.store.repository import InMemoryDecisions
from cachefleet_controlplane.views import FleetView
from tests.controlplane.fleet_views import DIFFERENT, fleet_view, unknown_worker, worker_status

TOKEN = "right"


class Still:
    """A fleet that stands still."""

    def __init__(self) -> None:
        self.policy = RoutingPolicy.CACHE_AWARE
        self.shown = fleet_view(
            worker_status("demo-0"),
            worker_status("demo-1", excluded=True, differences=DIFFERENT),
            unknown_worker("demo-2"),
        )

    def view(self) -> FleetView:
        return self.shown


class Doorkeeper:
    """Lets TOKEN do what is not ``forbidden``; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.forbidden = False
        self.away = False

    async def __call__(self, token: str, asked: Asked) -> Access:
        self.asked.append(asked)
        if self.away:
            raise AccessUnavailableError("nobody to ask")
        if token != TOKEN:
            return Access.UNAUTHENTICATED
        return Access.FORBIDDEN if self.forbidden else Access.ALLOWED


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
def app(fleet: Still, decisions: DecisionLog, doorkeeper: Doorkeeper) -> FastAPI:
    return admin_app(fleet, decisions, authorize=doorkeeper, max_bytes=2048)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    served = Starlette(routes=[Mount(PATH, app)])
    transport = httpx.ASGITransport(app=served, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://internal{PATH}") as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        yield client
