"""``/admin/v1/audit``: who changed what, as pages and as JSON lines."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from cachefleet_controlplane.admin.admin_openapi import ERRORS
from cachefleet_controlplane.admin.answers.json_lines import IN_JSON_LINES, json_lines
from cachefleet_controlplane.admin.audit.audit_schemas import AuditEntry, AuditExportQuery, AuditList, AuditPageQuery
from cachefleet_controlplane.store.audit_log import AuditLog
from cachefleet_controlplane.store.audit_records import AuditRecord


def audit_routes(audit: AuditLog) -> APIRouter:
    """The routes under ``/audit``."""
    router = APIRouter(tags=["audit"], responses=ERRORS, prefix="/audit")

    @router.get("", summary="Who changed what, last first")
    async def entries(asked: Annotated[AuditPageQuery, Query()]) -> AuditList:
        found = await audit.recent(asked.limit + 1, asked.wanted(), before=asked.before)
        page = found[: asked.limit]
        return AuditList(
            items=tuple(map(AuditEntry.of, page)),
            next=page[-1].id if len(found) > len(page) else None,
            waiting=audit.waiting,
            store_problem=audit.problem or None,
        )

    @router.get("/export", summary="Who changed what, as JSON lines", responses=IN_JSON_LINES, response_model=None)
    async def export(asked: Annotated[AuditExportQuery, Query()]) -> StreamingResponse:
        async def read(limit: int, before: str | None) -> list[AuditRecord]:
            return await audit.recent(limit, asked.wanted(), before=before, whole=True)

        return await json_lines(read, AuditEntry.of, limit=asked.limit)

    return router
