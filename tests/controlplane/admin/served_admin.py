"""The admin API over a database and a fleet that stands still, for tests of its clients, and a server for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from cachefleet_controlplane.admin.admin_app import PATH, AdminParts, admin_app
from cachefleet_controlplane.admin.fleet_routes import AdminFleet
from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.internal_auth.authorizer import AdminAuthorizer
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.usage_log import SqlUsage, UsageLog
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.native_server import NativeServer, ServerBounds
from cachefleet_controlplane.transport.served_tls import ServedTls
from tests.controlplane.admin.conftest import HASH_KEY, NOW, Doorkeeper, Oracle, Still
from tests.controlplane.fleet_views import contracts
from tests.fakes.decisions import InMemoryDecisions


def admin_over(
    database: Database, *, fleet: AdminFleet | None = None, authorize: AdminAuthorizer | None = None, **more: Any
) -> FastAPI:
    """The application; ``more`` are other parts of it than these."""
    repository, metrics = SqlTenants(database), Metrics()
    tenants = Tenants(repository, metrics=metrics, poll_seconds=60)
    given: dict[str, Any] = {
        "decisions": DecisionLog(InMemoryDecisions(max_rows=100), metrics=metrics),
        "service": TenantService(tenants, repository, HASH_KEY, wall_clock=lambda: NOW),
        "usage": UsageLog(SqlUsage(database), metrics=metrics, wall_clock=lambda: NOW),
        "explain": Oracle(),
        "contracts": contracts,
    }
    return admin_app(AdminParts(fleet=fleet or Still(), **(given | more)), authorize=authorize or Doorkeeper())


def mounted(admin: ASGIApp, *more: Mount) -> Starlette:
    """The admin API as it is served, beside other applications."""
    return Starlette(routes=[Mount(PATH, admin), *more])


@asynccontextmanager
async def listening(app: ASGIApp, *, port: int = 0, tls: ServedTls | None = None) -> AsyncIterator[int]:
    """Serve an application on this machine; its port."""
    bounds = ServerBounds(head_seconds=5, drain_seconds=0, tls=tls)
    async with Completions() as completions:
        server = NativeServer(app, completions, host="127.0.0.1", port=port, bounds=bounds)
        running = asyncio.create_task(server.serve())
        try:
            yield await server.listening()
        finally:
            server.stop()
            await running
