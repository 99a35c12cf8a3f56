"""``/admin/v1/decisions``: the latest decisions, those that are searched for, and one by its id."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query

from cachefleet_controlplane.admin.admin_openapi import ERRORS, refusals
from cachefleet_controlplane.admin.answers.record_pages import record_page
from cachefleet_controlplane.admin.decisions import decision_presenters, decision_schemas
from cachefleet_controlplane.admin.decisions.decision_query import PageQuery
from cachefleet_controlplane.store.decision_log import DecisionLog


def decision_routes(decisions: DecisionLog) -> APIRouter:
    """The routes ``GET /decisions`` and ``/decisions/{decision_id}``, which would take any path below too."""
    router = APIRouter(tags=["decisions"], responses=ERRORS)

    @router.get("/decisions", summary="Decisions that were made, last first")
    async def recent(asked: Annotated[PageQuery, Query()]) -> decision_schemas.DecisionList:
        page, following = await record_page(decisions, asked.wanted(), before=asked.before, limit=asked.limit)
        return decision_schemas.DecisionList(
            items=tuple(map(decision_presenters.decision, page)),
            next=following,
            store_problem=decisions.problem or None,
        )

    @router.get("/decisions/{decision_id}", summary="Why this worker, and what the cache did", responses=refusals(404))
    async def one(decision_id: Annotated[str, Path(max_length=64)]) -> decision_schemas.Decision:
        record = await decisions.get(decision_id)
        if record is None:
            raise HTTPException(404, "no such decision; old ones are forgotten")
        return decision_presenters.decision(record)

    return router
