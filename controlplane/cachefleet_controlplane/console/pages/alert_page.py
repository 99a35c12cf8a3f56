"""``/console/alerts``: what is wrong, and what to do; and how much that is, for other pages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from starlette.responses import Response

from cachefleet_controlplane.admin.findings.finding import Severity
from cachefleet_controlplane.console.visit import Visit


@dataclass(frozen=True, slots=True)
class AlertCount:
    """How many findings there are that somebody has to act upon, in words, and the worst of them."""

    words: str
    severity: str = ""
    """"" where there is none."""


async def alert_page(visit: Visit) -> Response:
    """The findings, the most severe first, as the admin API has them."""
    answer = await visit.ask("GET", "/findings")
    return visit.page(
        "alerts.html",
        items=answer.items,
        absent=answer.status == 404,
        problem=answer.problem,
        pages=visit.parts.docs.names,
    )


async def alert_count(visit: Visit) -> AlertCount:
    """Of the findings now; information is none of them."""
    answer = await visit.ask("GET", "/findings")
    if not answer.ok:
        return AlertCount("not known")
    counts = Counter(one["severity"] for one in answer.items)
    found = [one.value for one in (Severity.CRITICAL, Severity.WARNING) if counts[one]]
    return AlertCount(", ".join(f"{counts[one]} {one}" for one in found) or "none", next(iter(found), ""))
