"""The fields of a pool's status that the operator owns, and when they are to be written (pure)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cachefleet_core.budget import MIB, blocks
from cachefleet_core.fleet_status.pool_facts import PoolDetail
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.pool.model_names import claim_status
from cachefleet_core.pool.status import MAX_WORKERS
from cachefleet_core.report_frames import Phase
from cachefleet_operator import names
from cachefleet_operator.controlplane_client.pool_facts import Facts, block_bytes
from cachefleet_operator.kube.drift import holds
from cachefleet_operator.kube.objects import MANAGER
from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.conditions import findings
from cachefleet_operator.status.finding import Finding
from cachefleet_operator.status.pods import Pod
from cachefleet_operator.status.pool_assessment import NOTHING, Observations, Verdict, Workers

MAX_MESSAGE: Final = 1024
MAX_EPOCH: Final = 1024
MAX_STATE: Final = 64
CLOCKS: Final = 60.0
"""Tolerated clock skew in seconds; a last write further in the future is ignored."""

_PARTS: Final = ("admitted", "budget", "contract", "hitRatio", "workers", "workersOmitted", "foreignPods")
"""Fields in which an entry may disappear; only the operator writes them."""

_WRITTEN_AT_ONCE: Final = (
    "observedGeneration",
    "replicas",
    "readyReplicas",
    "firstReadyTime",
    "selector",
    "contract",
    "admitted",
    "foreignPods",
)

Manifest = dict[str, Any]


def status(
    verdict: Verdict,
    workers: Workers,
    observations: Observations = NOTHING,
    *,
    name: str,
    generation: int,
    previous: Mapping[str, Any],
    now: str,
    admitted: Manifest | None = None,
) -> Manifest:
    """All fields. A condition's time changes only with its status; measurements stay where there are no new ones."""
    known = observations.facts.pool
    found = findings(verdict, workers, observations)
    value: Manifest = {
        "observedGeneration": generation,
        "conditions": _conditions(found, generation, previous.get("conditions") or (), now),
        "replicas": workers.total,
        "readyReplicas": workers.ready,
        **_first_ready(workers, previous, now),
        "selector": names.selector(name),
        **({"admitted": admitted} if admitted else {}),
        **_budget(verdict, known, previous.get("budget") or {}),
        **_hit_ratio(known, previous.get("hitRatio"), now),
        **_contract(known, previous.get("contract")),
        **_workers(observations.pods, observations.facts),
        **({"foreignPods": list(observations.foreign[:MAX_WORKERS])} if observations.foreign else {}),
    }
    return value


def due(wanted: Mapping[str, Any], live: Mapping[str, Any], *, age: float, seconds: float) -> float | None:
    """Seconds to wait before writing ``wanted`` over ``live``, which was last written ``age`` seconds ago; 0 for now,
    None where nothing changed. Changes of figures alone are written at most every ``seconds``.
    """
    if holds(wanted, live) and _same_parts(wanted, live):
        return None
    if _material(wanted) != _material(live):
        return 0.0
    return max(0.0, seconds - max(age, 0.0)) if age > -CLOCKS else 0.0


def written_at(pool: Mapping[str, Any]) -> dt.datetime | None:
    """When the operator last changed the status, by the API server's clock; None where it never did."""
    times = [
        dt.datetime.fromisoformat(entry["time"])
        for entry in pool["metadata"].get("managedFields") or ()
        if entry.get("manager") == MANAGER and entry.get("subresource") == "status" and entry.get("time")
    ]
    return max(times, default=None)


def _same_parts(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether no entry has disappeared, which ``holds(wanted, live)`` does not see."""
    return all(holds(live.get(part), wanted.get(part)) for part in _PARTS)


def _material(value: Mapping[str, Any]) -> object:
    conditions = [(each.get("type"), each.get("status"), each.get("reason")) for each in value.get("conditions") or ()]
    workers = [
        tuple(each.get(part) for part in ("name", "state", "epoch", "warmed")) for each in value.get("workers") or ()
    ]
    budget = value.get("budget") or {}
    return (
        [value.get(name) for name in _WRITTEN_AT_ONCE],
        [budget.get(name) for name in ("requestedMiB", "kvCacheMiB", "admittedMiB", "blocks")],
        _spec_words(value),
        sorted(conditions, key=str),
        sorted(workers, key=str),
        value.get("workersOmitted"),
        (value.get("hitRatio") is None),
    )


def _spec_words(value: Mapping[str, Any]) -> list[object]:
    """Messages about the spec, in which new numbers are written at once. Not those of refusals: the API server lists
    the same problems in another order each time, and a webhook adds a number of its own.
    """
    told = {"ConfigValid", "BudgetAdmitted", "ContractConsistent"}
    found = [each for each in value.get("conditions") or () if each.get("type") in told]
    return [each.get("message") for each in found if each.get("reason") != Reason.REFUSED]


def _conditions(
    found: Iterable[Finding], generation: int, previous: Sequence[Mapping[str, Any]], now: str
) -> list[Manifest]:
    times = {(each.get("type"), each.get("status")): each.get("lastTransitionTime") for each in previous}
    return [
        {
            "type": finding.type,
            "status": finding.status,
            "reason": str(finding.reason),
            "message": finding.message[:MAX_MESSAGE],
            "observedGeneration": generation,
            "lastTransitionTime": times.get((finding.type, finding.status)) or now,
        }
        for finding in found
    ]


def _first_ready(workers: Workers, previous: Mapping[str, Any], now: str) -> Manifest:
    """When the pool first became ready; never changes once set."""
    if known := claim_status({"status": previous}):
        return known
    if not workers.ready:
        return {}
    said = {(each.get("type"), each.get("status")): each for each in previous.get("conditions") or ()}
    since = said.get(("WorkersAvailable", "True"), {}).get("lastTransitionTime")
    return {"firstReadyTime": since or now}


def _budget(verdict: Verdict, known: PoolDetail | None, previous: Mapping[str, Any]) -> Manifest:
    plan = verdict.budget
    if plan is None:
        return {}
    # A refused budget does not take effect: running workers keep theirs.
    admitted = plan.budget_mib if verdict.admitted else int(previous.get("admittedMiB", 0))
    value = {"requestedMiB": plan.budget_mib, "kvCacheMiB": plan.kv_cache_mib, "admittedMiB": admitted}
    if known is not None and (size := block_bytes(known)):
        used = max((member.idle_bytes or 0 for member in known.members), default=0)
        value |= {"usedMiB": -(-used // MIB), "blocks": blocks(admitted, size)}
    elif previous.get("admittedMiB") == admitted:
        value |= {name: previous[name] for name in ("usedMiB", "blocks") if name in previous}
    return {"budget": value}


def _hit_ratio(known: PoolDetail | None, previous: Mapping[str, Any] | None, now: str) -> Manifest:
    measured = known.hit_ratio.value if known else None
    if measured is None:
        return {"hitRatio": dict(previous)} if previous else {}
    value = f"{measured:.2f}"
    same = previous is not None and previous.get("value") == value
    return {"hitRatio": {"value": value, "sampledAt": previous.get("sampledAt") if same and previous else now}}


def _contract(known: PoolDetail | None, previous: str | None) -> Manifest:
    fingerprint = known.contract.fingerprint if known and known.contract else previous
    return {"contract": fingerprint} if fingerprint else {}


def _workers(pods: Sequence[Pod], facts: Facts) -> Manifest:
    members = _by_name(facts)
    shown = [_worker(pod, members.get(pod.name)) for pod in pods]
    if len(shown) <= MAX_WORKERS:
        return {"workers": shown} if shown else {}
    return {"workers": shown[:MAX_WORKERS], "workersOmitted": len(shown) - MAX_WORKERS}


def _by_name(facts: Facts) -> dict[str, list[WorkerFacts]]:
    found: dict[str, list[WorkerFacts]] = {}
    for member in facts.members:
        found.setdefault(member.name, []).append(member)
    return found


def _worker(pod: Pod, ranks: Sequence[WorkerFacts] | None) -> Manifest:
    told: Manifest = {"name": pod.name, "state": _state(pod, ranks)}
    if not ranks:
        return told
    first = min(ranks, key=lambda member: member.rank)
    if not first.epoch:  # its agent has not reported yet
        return told
    figures = {"warmed": all(member.warmed for member in ranks), "heldBlocks": sum(m.held_blocks for m in ranks)}
    return told | figures | {"epoch": first.epoch[:MAX_EPOCH]}


def _state(pod: Pod, ranks: Sequence[WorkerFacts] | None) -> str:
    """The worker's phase: from the pod where that is decisive, else as its agent reports it."""
    if pod.leaving:
        return Phase.DRAINING
    if pod.trouble is not None and pod.trouble.lasting:
        return Phase.FAILED
    phase = next((member.phase for member in ranks or () if member.phase), None)
    if pod.ready and phase not in {Phase.DRAINING, Phase.FAILED}:
        return next((member.suspended for member in ranks or () if member.suspended), str(Phase.READY))[:MAX_STATE]
    if pod.ready:
        return str(phase)
    return str(phase) if phase in {Phase.WARMING, Phase.DRAINING, Phase.FAILED} else Phase.STARTING
