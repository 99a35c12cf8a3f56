"""``POST /admin/v1/explain``: the decision that a request would get now, and why."""

from __future__ import annotations

from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, Query, Request

from cachefleet_controlplane.admin.admin_openapi import ERRORS, refusals
from cachefleet_controlplane.admin.decisions import decision_presenters, decision_schemas
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_core.pool.section import TENANT

Tenant = Annotated[
    str | None,
    Query(min_length=1, max_length=128, pattern=TENANT, description="Whose request; default: the default tenant's."),
]
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "A request as the gateway takes it; `endpoint` names one where its body does not tell.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}
_PROBLEMS: Final = refusals(404, 413)


class Explain(Protocol):
    """Gives the record of a request that is decided and not sent. ApiError where the gateway would refuse it."""

    async def __call__(self, body: bytes, tenant: str | None, /) -> DecisionRecord: ...


def explain_routes(explain: Explain) -> APIRouter:
    """The route ``POST /explain``."""
    router = APIRouter(tags=["decisions"], responses=ERRORS)

    @router.post("/explain", summary="Decide, and send nothing", responses=_PROBLEMS, openapi_extra=_BODY)
    async def explained(request: Request, tenant: Tenant = None) -> decision_schemas.Decision:
        return decision_presenters.decision(await explain(await request.body(), tenant))

    return router
