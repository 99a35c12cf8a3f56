"""``/console/lost-hits``: tokens of the last hour that no cache served, by cause, and what to do about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from cachefleet_controlplane.console.figures.lost_causes import advice, prompt_cause_name
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


@dataclass(frozen=True, slots=True)
class PromptCauseRow:
    """One cause in prompts; ``share`` is of all tokens that were first seen."""

    cause: str
    name: str
    tokens: int
    share: float
    why: str


async def lost_hit_page(visit: Visit) -> Response:
    """The causes of one pool or of all, most tokens first, and what in tenants' prompts is dearest."""
    pool = chosen_pool(visit)
    query = {"pool": pool} if pool else {}
    dearest = await visit.ask("GET", "/prompt-causes", query | {"limit": "20"})
    answer = await visit.ask("GET", "/lost-hits", query)
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
        in_prompts=prompt_rows(found),
        dearest=dearest.data["items"] if dearest.ok else [],
        name_of=prompt_cause_name,
        chart=chart,
        absent=answer.status == 404,
        problem=answer.problem,
        pool=pool,
        pools=await pool_keys(visit),
    )


def prompt_rows(found: Mapping[str, Any]) -> list[PromptCauseRow]:
    """The causes in prompts of an answer of ``/lost-hits``, most tokens first."""
    causes = found.get("firstSeen", ())
    total = sum(one["tokens"] for one in causes)
    return [
        PromptCauseRow(one["cause"], prompt_cause_name(one["cause"]), one["tokens"], one["tokens"] / total, one["why"])
        for one in causes
    ]


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
