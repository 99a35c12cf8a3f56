"""The condition InferencePoolAccepted: what gateways say of a pool's InferencePool, or why there is none (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.finding import Finding

CONDITION: Final = "InferencePoolAccepted"
MAX_PARENTS: Final = 4
"""Gateways that a message names."""
_JUDGED: Final = ("Accepted", "ResolvedRefs")
_NOBODY: Final = "Status"
"""Kind of the parent that versions before 1.1 of the CRD fill in."""

Json = Mapping[str, Any]


def acceptance(live: Json) -> Finding:
    """From the conditions of each parent in an InferencePool's status, as far as they are about its present spec."""
    parents, generation = list(_parents(live)), int(live["metadata"].get("generation") or 0)
    if not parents:
        words = (
            f"no gateway has told of InferencePool {live['metadata']['name']}: no HTTPRoute leads to it, or none yet"
        )
        return Finding(CONDITION, "Unknown", Reason.NO_GATEWAY, words)
    told = [(_name(parent), _conditions(parent, generation)) for parent in parents]
    refused = [f"{name}: {_words(one)}" for name, found in told for one in found.values() if one["status"] == "False"]
    if refused:
        return Finding(CONDITION, "False", Reason.REFUSED_BY_GATEWAY, _shown(refused))
    waiting = [name for name, found in told if not _accepts(found)]
    if waiting:
        words = f"not accepted yet, as it is now, by {_shown(waiting)}"
        return Finding(CONDITION, "Unknown", Reason.GATEWAY_PENDING, words)
    return Finding(CONDITION, "True", Reason.ACCEPTED_BY_GATEWAYS, f"accepted by {_shown([name for name, _ in told])}")


def _parents(live: Json) -> Iterator[Json]:
    for parent in (live.get("status") or {}).get("parents") or ():
        if (parent.get("parentRef") or {}).get("kind") != _NOBODY:
            yield parent


def _conditions(parent: Json, generation: int) -> dict[str, Json]:
    found = parent.get("conditions") or ()
    return {
        one["type"]: one
        for one in found
        if one["type"] in _JUDGED and int(one.get("observedGeneration") or generation) >= generation
    }


def _accepts(found: Mapping[str, Json]) -> bool:
    return "Accepted" in found and all(one["status"] == "True" for one in found.values())


def _name(parent: Json) -> str:
    ref = parent["parentRef"]
    return f"{ref.get('kind') or 'Gateway'} {ref.get('namespace', '')}/{ref['name']}".replace(" /", " ")


def _words(condition: Json) -> str:
    said = " ".join(str(condition.get("message") or "").split())
    return f"{condition['type']} is False, {condition['reason']}" + (f": {said}" if said else "")


def _shown(entries: list[str]) -> str:
    more = f" and {len(entries) - MAX_PARENTS} more" if len(entries) > MAX_PARENTS else ""
    return "; ".join(entries[:MAX_PARENTS]) + more
