"""What is said about a pool: conditions and the rest of its status (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_core.budget import BudgetPlan
from cachefleet_operator import names

MAX_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition without its times."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Workers:
    """What a Deployment says about its pods; ``current`` where that is about the pool as it is now."""

    wanted: int = 0
    total: int = 0
    ready: int = 0
    updated: int = 0
    current: bool = False
    stalled: str = ""
    failure: str = ""

    @property
    def settled(self) -> bool:
        return self.current and self.updated == self.total == self.wanted and self.ready == self.wanted


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was made of the pool's spec. ``invalid`` holds (reason, message) where it cannot be used."""

    invalid: tuple[str, str] | None = None
    budget: BudgetPlan | None = None
    replicas: int | None = None
    """Workers wanted, where the spec could be read."""

    @property
    def admitted(self) -> bool:
        """Whether workers may be started for it."""
        return self.invalid is None and self.budget is not None and self.budget.admitted is not False


def workers_of(deployment: Mapping[str, Any] | None, *, wanted: int | None, applied: bool) -> Workers:
    """Read a live Deployment; ``applied`` where nothing had to be changed about it."""
    if deployment is None:
        return Workers(wanted=wanted or 0)
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    said = {condition["type"]: condition for condition in status.get("conditions") or ()}
    return Workers(
        wanted=spec.get("replicas", 1) if wanted is None else wanted,
        total=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=applied and status.get("observedGeneration") == deployment["metadata"].get("generation"),
        stalled=_said(said, "Progressing", "False"),
        failure=_said(said, "ReplicaFailure", "True"),
    )


def findings(verdict: Verdict, workers: Workers) -> tuple[Finding, ...]:
    """All conditions of a pool, the summary last."""
    config, budget = _config(verdict), _budget(verdict)
    available, progressing = _available(workers), _progressing(verdict, workers)
    return (config, budget, available, progressing, _ready(config, budget, available, progressing, workers))


def status(
    verdict: Verdict, workers: Workers, *, name: str, generation: int, previous: Sequence[Mapping[str, Any]], now: str
) -> dict[str, Any]:
    """The fields of ``status`` that the operator owns. A condition's time moves only with its status."""
    times = {
        (condition.get("type"), condition.get("status")): condition.get("lastTransitionTime") for condition in previous
    }
    value: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": [
            {
                "type": finding.type,
                "status": finding.status,
                "reason": finding.reason,
                "message": finding.message[:MAX_MESSAGE],
                "observedGeneration": generation,
                "lastTransitionTime": times.get((finding.type, finding.status)) or now,
            }
            for finding in findings(verdict, workers)
        ],
        "replicas": workers.total,
        "readyReplicas": workers.ready,
        "selector": names.selector(name),
    }
    if verdict.budget is not None:
        value["budget"] = {
            "requestedMiB": verdict.budget.budget_mib,
            "kvCacheMiB": verdict.budget.kv_cache_mib,
            "admittedMiB": verdict.budget.budget_mib if verdict.admitted else 0,
        }
    return value


def _config(verdict: Verdict) -> Finding:
    if verdict.invalid is not None:
        return Finding("ConfigValid", "False", *verdict.invalid)
    return Finding("ConfigValid", "True", "Valid", "the pool is valid")


def _budget(verdict: Verdict) -> Finding:
    if verdict.budget is None:
        return Finding("BudgetAdmitted", "Unknown", "ConfigInvalid", "the pool cannot be read")
    words = {True: "True", False: "False", None: "Unknown"}
    return Finding("BudgetAdmitted", words[verdict.budget.admitted], verdict.budget.reason, verdict.budget.message)


def _available(workers: Workers) -> Finding:
    count = f"{workers.ready} of {workers.wanted} workers ready"
    if workers.failure:
        return Finding(
            "WorkersAvailable", "False" if not workers.ready else "True", "PodsRefused", f"{count}: {workers.failure}"
        )
    if workers.wanted == 0:
        return Finding("WorkersAvailable", "False", "NoWorkersWanted", "no worker is wanted")
    if workers.ready == 0:
        return Finding("WorkersAvailable", "False", "NoneReady", count)
    reason = "AllReady" if workers.ready >= workers.wanted else "SomeReady"
    return Finding("WorkersAvailable", "True", reason, count)


def _progressing(verdict: Verdict, workers: Workers) -> Finding:
    if not verdict.admitted:
        return Finding("Progressing", "False", "Held", "running workers stay as they are, no worker is started")
    if workers.stalled:
        return Finding("Progressing", "False", "Stalled", workers.stalled)
    if workers.settled:
        return Finding("Progressing", "False", "Settled", "all workers run the pool as it is")
    return Finding("Progressing", "True", "RollingOut", "workers are being started or replaced")


def _ready(config: Finding, budget: Finding, available: Finding, progressing: Finding, workers: Workers) -> Finding:
    for finding in (config, budget):
        if finding.status == "False":
            return Finding("Ready", "False", finding.reason, finding.message)
    if workers.settled and not workers.failure:
        return Finding("Ready", "True", "WorkersReady" if workers.wanted else "NoWorkersWanted", available.message)
    cause = available if workers.failure or progressing.reason == "Settled" else progressing
    return Finding("Ready", "False", cause.reason, cause.message if workers.stalled else available.message)


def _said(conditions: Mapping[str, Mapping[str, Any]], kind: str, status_: str) -> str:
    condition = conditions.get(kind)
    if condition is None or condition.get("status") != status_:
        return ""
    return str(condition.get("message") or condition.get("reason") or kind)
