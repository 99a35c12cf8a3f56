"""``/admin/v1/usage``: what tenants used and what it cost, by the hour or day, as JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, HTTPException, Query, Response
from pydantic import AwareDatetime

from cachefleet_controlplane.admin import tenant_schemas
from cachefleet_controlplane.admin.admin_openapi import ERRORS
from cachefleet_controlplane.admin.tenant_schemas import UsageBy
from cachefleet_controlplane.store.tenant_records import UsageRecord, amount_text
from cachefleet_controlplane.store.usage_log import DAY_SECONDS, HOUR_SECONDS, UsageLog
from cachefleet_core.pool.section import TENANT
from cachefleet_core.tenancy import TenantId

CSV: Final = "text/csv"
TRUNCATED: Final = "x-cachefleet-truncated"
"""Header of a CSV answer from which rows are missing."""
MAX_ROWS: Final = 100_000
AMOUNTS: Final = ("charged", "saved", "wasted", "compute_saved", "compute_wasted")
_DEFAULT_SPANS: Final = {UsageBy.HOUR: timedelta(hours=24), UsageBy.DAY: timedelta(days=30)}
_STEPS: Final = {UsageBy.HOUR: HOUR_SECONDS, UsageBy.DAY: DAY_SECONDS}
_EXAMPLE: Final = (
    "hour,tenant,model,requests,promptTokens,cachedTokens,computedTokens,completionTokens,"
    "recomputedTokens,charged,saved,wasted,computeSaved,computeWasted\r\n"
    "2026-01-01T10:00:00Z,acme,qwen3-32b,12,48000,36000,12000,3100,2000,0.01172,0.0108,0.0006,0.0034,0.00019\r\n"
)
_IN_CSV: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {CSV: {"schema": {"type": "string"}, "example": _EXAMPLE}}}
}

From = Annotated[
    AwareDatetime | None,
    Query(alias="from", description="Hours that begin then or later; default: a day before `to`, by day 30."),
]
To = Annotated[AwareDatetime | None, Query(description="Hours that begin before; default: now.")]
Tenant = Annotated[str | None, Query(min_length=1, max_length=128, pattern=TENANT)]
By = Annotated[UsageBy, Query(description="Sums of each hour, or of each day of UTC.")]
Limit = Annotated[int, Query(ge=1, le=MAX_ROWS, description="How many rows at most.")]


def usage_routes(usage: UsageLog, wall_clock: Callable[[], float]) -> APIRouter:
    """The route ``GET /usage``; ``wall_clock`` is Unix time in seconds."""
    router = APIRouter(tags=["tenants"], responses=ERRORS)

    @router.get("/usage", summary="What tenants used", response_model=tenant_schemas.UsageList, responses=_IN_CSV)
    async def used(
        *,
        start: From = None,
        to: To = None,
        tenant: Tenant = None,
        limit: Limit = 10_000,
        by: By = UsageBy.HOUR,
        accept: Annotated[str, Header(include_in_schema=False)] = "",
    ) -> Any:
        first, end = _span(start, to, wall_clock(), _DEFAULT_SPANS[by])
        only = None if tenant is None else TenantId(tenant)
        found = await usage.between(first, end, tenant=only, limit=limit + 1, step=_STEPS[by])
        rows, truncated = [shown(record) for record in found[:limit]], len(found) > limit
        return (
            _csv(rows, truncated=truncated)
            if CSV in accept
            else tenant_schemas.UsageList(items=rows, truncated=truncated)
        )

    return router


def shown(record: UsageRecord) -> tenant_schemas.Usage:
    """A usage record as the API shows it; computed tokens are prompt tokens that were not cached."""
    return tenant_schemas.Usage(
        hour=datetime.fromtimestamp(record.hour, UTC),
        tenant=record.tenant,
        model=record.model,
        requests=record.requests,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        computed_tokens=record.prompt_tokens - record.cached_tokens,
        completion_tokens=record.completion_tokens,
        recomputed_tokens=record.recomputed_tokens,
        **{name: amount_text(getattr(record, name)) for name in AMOUNTS},
    )


def _span(start: datetime | None, to: datetime | None, now: float, default: timedelta) -> tuple[int, int]:
    end = to or datetime.fromtimestamp(now, UTC)
    try:
        first = start or end - default
    except OverflowError as error:
        raise HTTPException(422, "query.to must be later") from error
    if first >= end:
        raise HTTPException(422, "query.from must be earlier than query.to")
    return int(first.timestamp()), int(end.timestamp())


def _csv(rows: Sequence[tenant_schemas.Usage], *, truncated: bool) -> Response:
    text = io.StringIO()
    names = [field.alias or name for name, field in tenant_schemas.Usage.model_fields.items()]
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(row.model_dump(mode="json", by_alias=True) for row in rows)
    return Response(text.getvalue(), media_type=CSV, headers={TRUNCATED: "true"} if truncated else {})
