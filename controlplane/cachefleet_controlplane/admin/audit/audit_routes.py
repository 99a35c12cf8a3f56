"""``/admin/v1/audit``: who changed what, as pages and as JSON lines."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from cachefleet_controlplane.admin.admin_openapi import ERRORS
from cachefleet_controlplane.admin.answers.json_lines import IN_JSON_LINES, json_lines
from cachefleet_controlplane.admin.answers.record_pages import record_page
from cachefleet_controlplane.admin.audit.audit_schemas import AuditEntry, AuditExportQuery, AuditList, AuditPageQuery
from cachefleet_controlplane.store.audit_log import AuditLog


def audit_routes(audit: AuditLog) -> APIRouter:
    """The routes under ``/audit``."""
    router = APIRouter(tags=["audit"], responses=ERRORS, prefix="/audit")

    @router.get("", summary="Who changed what, last first")
    async def entries(asked: Annotated[AuditPageQuery, Query()]) -> AuditList:
        page, following = await record_page(audit, asked.wanted(), before=asked.before, limit=asked.limit)
        return AuditList(
            items=tuple(map(AuditEntry.of, page)),
            next=following,
            waiting=audit.waiting,
            store_problem=audit.problem or None,
        )

    @router.get("/export", summary="Who changed what, as JSON lines", responses=IN_JSON_LINES, response_model=None)
    async def export(asked: Annotated[AuditExportQuery, Query()]) -> StreamingResponse:
        return await json_lines(audit, asked.wanted(), AuditEntry.of, limit=asked.limit)

    return router
