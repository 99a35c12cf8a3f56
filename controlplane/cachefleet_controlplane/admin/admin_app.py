"""The admin API under ``/admin/v1``: the application of all its routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from cachefleet_controlplane.admin import problem_responses
from cachefleet_controlplane.admin.access_routes import access_routes
from cachefleet_controlplane.admin.admin_openapi import ERRORS, with_problems
from cachefleet_controlplane.admin.audit.audit_middleware import Audited
from cachefleet_controlplane.admin.audit.audit_routes import audit_routes
from cachefleet_controlplane.admin.auth_middleware import BodyBound, Guard
from cachefleet_controlplane.admin.certification_routes import Certifier, certificate_routes
from cachefleet_controlplane.admin.decisions.decision_export import export_routes
from cachefleet_controlplane.admin.decisions.decision_routes import decision_routes
from cachefleet_controlplane.admin.decisions.decision_stream import stream_routes
from cachefleet_controlplane.admin.explain_routes import Explain, explain_routes
from cachefleet_controlplane.admin.findings.findings import findings
from cachefleet_controlplane.admin.findings.service_findings import ServiceState
from cachefleet_controlplane.admin.findings_routes import findings_routes
from cachefleet_controlplane.admin.fleet_routes import AdminFleet, fleet_routes, routing_routes
from cachefleet_controlplane.admin.flush_routes import Flush, flush_routes
from cachefleet_controlplane.admin.history.capacity_routes import Capacities, Confirm, capacity_routes
from cachefleet_controlplane.admin.history.contract_routes import Contracts, contract_routes
from cachefleet_controlplane.admin.history.history_routes import HistorySource, history_routes
from cachefleet_controlplane.admin.simulate_routes import simulate_routes
from cachefleet_controlplane.admin.tenant_routes import key_routes, tenant_routes
from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.admin.usage_routes import usage_routes
from cachefleet_controlplane.internal_auth.authorizer import AdminAuthorizer
from cachefleet_controlplane.simulation.simulator import Simulate
from cachefleet_controlplane.store.audit_log import AuditLog
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.sql_tenants import TenantConflictError, TenantNotFoundError
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.usage_log import UsageLog
from cachefleet_controlplane.wire.errors import ApiError

PATH = "/admin/v1"
MAX_BYTES: Final = 1024 * 1024
"""The longest body on the internal port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """What the admin API shows and changes; without a part its routes are left out.

    ``state`` is what this replica knows of itself, for findings.
    """

    fleet: AdminFleet
    decisions: DecisionLog
    service: TenantService
    usage: UsageLog
    explain: Explain
    flush: Flush | None = None
    simulate: Simulate | None = None
    certifier: Certifier | None = None
    state: Callable[[], ServiceState] = ServiceState
    history: HistorySource | None = None
    capacities: Capacities | None = None
    confirm: Confirm | None = None
    contracts: Contracts | None = None
    audit: AuditLog | None = None


def admin_app(
    parts: AdminParts,
    *,
    authorize: AdminAuthorizer,
    user_of: Callable[[str], str] = lambda _: "",
    max_bytes: int = MAX_BYTES,
) -> FastAPI:
    """Make the application to be mounted at ``PATH``; every path under it asks ``authorize`` first.

    ``user_of`` gives the user of a token that was just judged, for the audit log.
    """
    app = FastAPI(title="Cachefleet admin API", version="v1", openapi_url=None, docs_url=None, redoc_url=None)
    for router in (*_routers(parts), _meta_routes(app)):
        app.router.routes.extend(router.routes)  # include_router would build each route a second time
    app.add_exception_handler(StarletteHTTPException, problem_responses.http_problem)
    app.add_exception_handler(RequestValidationError, problem_responses.invalid_problem)
    app.add_exception_handler(ApiError, problem_responses.api_problem)
    app.add_exception_handler(StoreError, problem_responses.store_problem)
    app.add_exception_handler(TenantNotFoundError, problem_responses.not_found_problem)
    app.add_exception_handler(TenantConflictError, problem_responses.conflict_problem)
    app.add_exception_handler(Exception, problem_responses.unexpected_problem)
    app.add_middleware(BodyBound, max_bytes=max_bytes)
    app.add_middleware(Guard, authorize=authorize, user_of=user_of)
    if parts.audit is not None:  # the middleware added last runs first
        app.add_middleware(Audited, audit=parts.audit, wall_clock=parts.service.wall_clock)
    return app


def _routers(parts: AdminParts) -> Iterator[APIRouter]:
    fleet, decisions, service = parts.fleet, parts.decisions, parts.service
    capacities = parts.capacities or tuple
    yield from (fleet_routes(fleet), findings_routes(lambda: findings(fleet.view(), parts.state(), capacities())))
    yield from (stream_routes(decisions.feed), export_routes(decisions))  # first: a decision's id may be any word
    yield from (decision_routes(decisions), explain_routes(parts.explain), routing_routes(fleet))
    if parts.simulate is not None:
        yield simulate_routes(parts.simulate)
    if parts.flush is not None:
        yield flush_routes(parts.flush)
    if parts.history is not None:
        yield history_routes(parts.history)
    if parts.capacities is not None:
        yield capacity_routes(parts.capacities, parts.confirm)
    if parts.contracts is not None:
        yield contract_routes(parts.contracts)
    if parts.audit is not None:
        yield audit_routes(parts.audit)
    yield from (tenant_routes(service), key_routes(service), access_routes(service))
    yield usage_routes(parts.usage, service.wall_clock)
    if parts.certifier is not None:
        yield certificate_routes(parts.certifier)


def _meta_routes(app: FastAPI) -> APIRouter:
    router = APIRouter(responses=ERRORS)

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(with_problems(app.openapi()))

    return router
