"""``GET /admin/v1/decisions/export``: decisions that were made, as JSON lines."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from cachefleet_controlplane.admin.admin_openapi import ERRORS
from cachefleet_controlplane.admin.answers.json_lines import IN_JSON_LINES, json_lines
from cachefleet_controlplane.admin.decisions import decision_presenters
from cachefleet_controlplane.admin.decisions.decision_query import ExportQuery
from cachefleet_controlplane.store.decision_log import DecisionLog


def export_routes(decisions: DecisionLog) -> APIRouter:
    """The route ``GET /decisions/export``."""
    router = APIRouter(tags=["decisions"], responses=ERRORS)

    @router.get("/decisions/export", summary="Decisions as JSON lines", responses=IN_JSON_LINES, response_model=None)
    async def export(asked: Annotated[ExportQuery, Query()]) -> StreamingResponse:
        return await json_lines(decisions, asked.wanted(), decision_presenters.decision, limit=asked.limit)

    return router
