"""``/console/usage``: what was used and what it cost, of some days, by tenant, model or day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from starlette.responses import Response

from cachefleet_controlplane.console.visit import Visit

SUMS: Final = ("requests", "promptTokens", "cachedTokens", "computedTokens", "completionTokens", "recomputedTokens")
AMOUNTS: Final = ("charged", "saved", "wasted", "computeSaved", "computeWasted")
FIELDS: Final = {"tenant": "Tenant", "model": "Model", "hour": "Day"}
"""What rows can be added up by, and its heading."""
DAYS: Final = (1, 7, 30, 90)
DEFAULT_DAYS: Final = 30
MOST: Final = 500
"""Rows of the page."""
READ: Final = 20_000
"""Rows of the answer that it adds up."""
Item = Mapping[str, Any]
Sums = Mapping[str, Decimal]


async def usage_page(visit: Visit) -> Response:
    """The sums of some days, and how they divide."""
    query = visit.request.query_params
    by = query["by"] if query.get("by") in FIELDS else "tenant"
    days = next((one for one in DAYS if str(one) == query.get("days")), DEFAULT_DAYS)
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = midnight - timedelta(days=days - 1)
    answer = await visit.ask("GET", "/usage", {"by": "day", "from": start.isoformat(), "limit": str(READ)})
    rows = ordered(usage_by(answer.items, by), by)
    return visit.page(
        "usage.html",
        rows=rows[:MOST],
        more=max(0, len(rows) - MOST),
        truncated=answer.ok and answer.data["truncated"],
        total=usage_total(answer.items),
        by=by,
        fields=FIELDS,
        days=days,
        choices=DAYS,
        problem=answer.problem,
    )


def usage_by(rows: Sequence[Item], field: str) -> Mapping[str, Sums]:
    """The sums of each value of a field over all others; zeros for values that are not there."""
    found: defaultdict[str, list[Item]] = defaultdict(list)
    for row in rows:
        found[row[field]].append(row)
    return defaultdict(lambda: usage_total(()), {name: usage_total(of_it) for name, of_it in found.items()})


def usage_total(rows: Sequence[Item]) -> Sums:
    """The sums of all rows, exact."""
    return {name: sum((Decimal(row[name]) for row in rows), Decimal()) for name in (*SUMS, *AMOUNTS)}


def ordered(rows: Mapping[str, Sums], by: str) -> list[tuple[str, Sums]]:
    """Days newest first; tenants and models by what they were charged, then by their prompt tokens."""
    if by == "hour":
        return sorted(rows.items(), reverse=True)
    return sorted(rows.items(), key=lambda row: (-row[1]["charged"], -row[1]["promptTokens"], row[0]))
