"""``/admin/v1/decisions``: the latest decisions, those that are searched for, and one by its id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Path, Query, Response

from cachefleet_controlplane.admin.admin_openapi import ERRORS, refusals
from cachefleet_controlplane.admin.answers.record_pages import record_page
from cachefleet_controlplane.admin.decisions import decision_presenters
from cachefleet_controlplane.admin.decisions.decision_query import PageQuery
from cachefleet_controlplane.admin.decisions.decision_schemas import Decision, DecisionList
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.decision_records import DecisionRecord

AT_ONCE: Final = 20
"""Decisions that are written as JSON before the event loop turns to something else."""
_BEGINS: Final = '{"items":['


def decision_routes(decisions: DecisionLog) -> APIRouter:
    """The routes ``GET /decisions`` and ``/decisions/{decision_id}``, which would take any path below too."""
    router = APIRouter(tags=["decisions"], responses=ERRORS)

    @router.get("/decisions", summary="Decisions that were made, last first", response_model=DecisionList)
    async def recent(asked: Annotated[PageQuery, Query()]) -> Response:
        page, following = await record_page(decisions, asked.wanted(), before=asked.before, limit=asked.limit)
        rest = DecisionList(items=(), next=following, store_problem=decisions.problem or None)
        return Response(await listed(page, rest), media_type="application/json")

    @router.get("/decisions/{decision_id}", summary="Why this worker, and what the cache did", responses=refusals(404))
    async def read_decision(decision_id: Annotated[str, Path(max_length=64)]) -> Decision:
        record = await decisions.get(decision_id)
        if record is None:
            raise HTTPException(404, "no such decision; old ones are forgotten")
        return decision_presenters.decision(record)

    return router


async def listed(records: Sequence[DecisionRecord], rest: DecisionList) -> str:
    """The JSON of ``rest`` with records as its items: AT_ONCE of them before what else this process does goes on."""
    pieces = []
    for start in range(0, len(records), AT_ONCE):
        shown = map(decision_presenters.decision, records[start : start + AT_ONCE])
        pieces += [one.model_dump_json(by_alias=True) for one in shown]
        await asyncio.sleep(0)
    return _BEGINS + ",".join(pieces) + rest.model_dump_json(by_alias=True).removeprefix(_BEGINS)
