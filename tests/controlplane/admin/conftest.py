"""The admin API, mounted as it is served, over a frozen fleet and a log in memory."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from cachefleet_controlplane.admin.admin_app import PATH, AdminParts, admin_app
from cachefleet_controlplane.admin.history.history_routes import HistorySource
from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.history.cache_history import CacheHistory
from cachefleet_controlplane.hot_prefixes.hot_prefix import ShownPrefix
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, Asked, Authorization
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.prompt_causes.cause_ledger import CauseLedger
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.store.audit_log import AuditBounds, AuditLog
from cachefleet_controlplane.store.audit_repository import SqlAudit
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.usage_log import SqlUsage, UsageLog
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.workers.views import FleetView
from cachefleet_core.fleet_status.capacity_facts import CapacityFacts
from cachefleet_core.tenancy import TenantId
from tests.controlplane.fleet_views import DIFFERENT, contracts, fleet_view, unknown_worker, worker_status
from tests.controlplane.store.conftest import make_record
from tests.fakes.decisions import InMemoryDecisions

TOKEN = "right"
NOW = 1_800_000_000.0
HASH_KEY = b"h" * 32


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
    """Lets TOKEN do what is not ``forbidden``, of ``verbs`` where they are given; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.verbs: set[str] | None = None
        self.forbidden = False
        self.away = False

    async def __call__(self, token: str, asked: Asked) -> Authorization:
        self.asked.append(asked)
        if self.away:
            raise AccessUnavailableError("nobody to ask")
        if token != TOKEN:
            return Authorization.UNAUTHENTICATED
        known = self.verbs is None or asked.verb in self.verbs
        return Authorization.ALLOWED if known and not self.forbidden else Authorization.FORBIDDEN


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
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=0.5)) as database:
        yield database


@pytest.fixture
async def service(database: Database) -> TenantService:
    repository = SqlTenants(database)
    tenants = Tenants(repository, metrics=Metrics(), poll_seconds=60)
    return TenantService(tenants, repository, HASH_KEY, wall_clock=lambda: NOW)


@pytest.fixture
async def usage(database: Database) -> UsageLog:
    return UsageLog(SqlUsage(database), metrics=Metrics(), wall_clock=lambda: NOW)


@pytest.fixture
async def audit(database: Database) -> AuditLog:
    """Without its task, so that records wait in memory, for no time."""
    bounds = AuditBounds(write_seconds=0, queue=5)
    return AuditLog(SqlAudit(database), metrics=Metrics(), wall_clock=lambda: NOW, bounds=bounds)


class Oracle:
    """Explains every request alike, or fails; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, str | None]] = []
        self.error: ApiError | None = None

    async def __call__(self, body: bytes, tenant: str | None = None) -> DecisionRecord:
        self.asked.append((body, tenant))
        if self.error:
            raise self.error
        return make_record(7)


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def history() -> CacheHistory:
    return CacheHistory()


PREFIX = ShownPrefix(
    name="00c0ffee00c0ffee",
    tenant=TenantId("acme"),
    model="default/tiny",
    tokens=64,
    requests=3,
    heat=2.5,
    saved_tokens=128,
    holders=(WorkerId("default/demo/demo-0#0"),),
    holder_count=1,
    warm=True,
)


async def prefixes(pool: str | None, most: int) -> list[ShownPrefix]:
    return [PREFIX][:most] if pool in {None, "default/demo"} else []


@pytest.fixture
def ledger() -> CauseLedger:
    return CauseLedger()


@pytest.fixture
def confirmed() -> list[tuple[str | None, str | None, int]]:
    """Pool, action and requests of advice that was to be confirmed."""
    return []


@pytest.fixture
def capacities() -> list[CapacityFacts]:
    return []


@pytest.fixture
def app(  # noqa: PLR0917 - fixtures
    fleet: Still,
    decisions: DecisionLog,
    service: TenantService,
    usage: UsageLog,
    oracle: Oracle,
    doorkeeper: Doorkeeper,
    history: CacheHistory,
    ledger: CauseLedger,
    capacities: list[CapacityFacts],
    confirmed: list[tuple[str | None, str | None, int]],
    audit: AuditLog,
) -> FastAPI:
    async def confirm(pool: str | None, action: str | None, requests: int) -> CapacityFacts:
        confirmed.append((pool, action, requests))
        return CapacityFacts(pool=pool or "default/demo")

    source = HistorySource(history, prefixes, ledger, clock=lambda: NOW)
    given: dict[str, Any] = {"service": service, "usage": usage, "explain": oracle, "history": source, "audit": audit}
    given |= {"capacities": lambda: capacities, "confirm": confirm}
    parts = AdminParts(fleet=fleet, decisions=decisions, contracts=contracts, **given)
    user_of = "user of {}".format
    return admin_app(parts, authorize=doorkeeper, user_of=user_of, max_bytes=2048)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    served = Starlette(routes=[Mount(PATH, app)])
    transport = httpx.ASGITransport(app=served, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://internal{PATH}") as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        yield client
