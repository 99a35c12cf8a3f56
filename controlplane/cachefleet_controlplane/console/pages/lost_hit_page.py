"""``/console/lost-hits``: tokens of the last hour that no cache served, by cause, and what to do about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from cachefleet_controlplane.console.figures.lost_causes import advice
from cachefleet_controlplane.console.pages.pool_choice import chosen_pool, pool_keys
from cachefleet_controlplane.console.visit import Visit


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause; ``share`` is of all tokens that were lost."""

    cause: str
    name: str
    tokens: int
    share: float
    why: str
    action: str


async def lost_hit_page(visit: Visit) -> Response:
    """The causes of one pool or of all, most tokens first."""
    pool = chosen_pool(visit)
    answer = await visit.ask("GET", "/lost-hits", {"pool": pool} if pool else {})
    found: Mapping[str, Any] = answer.data if answer.ok else {"promptTokens": 0, "servedTokens": 0}
    rows = cause_rows(found) if answer.ok else []
    chart = {
        "causes": [row.cause for row in rows],
        "labels": [row.name for row in rows],
        "buckets": [{"at": one["at"], "causes": one["causes"]} for one in found.get("buckets", ())],
    }
    return visit.page(
        "lost_hits.html",
        found=found,
        rows=rows,
        chart=chart,
        absent=answer.status == 404,
        problem=answer.problem,
        pool=pool,
        pools=await pool_keys(visit),
    )


def cause_rows(found: Mapping[str, Any]) -> list[CauseRow]:
    """The causes of an answer of ``/lost-hits``, most tokens first."""
    lost = found["promptTokens"] - found["servedTokens"]
    ordered = sorted(found["causes"], key=lambda one: -one["tokens"])
    return [
        CauseRow(
            cause=one["cause"],
            name=advice(one["cause"]).name,
            tokens=one["tokens"],
            share=one["tokens"] / lost if lost else 0.0,
            why=one.get("why", ""),
            action=advice(one["cause"]).action,
        )
        for one in ordered
    ]
