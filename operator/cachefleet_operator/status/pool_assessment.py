"""The inputs of a pool's conditions: verdict on the spec, worker counts, observations (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cachefleet_core.budget import BudgetPlan, BudgetReason, plan_budget
from cachefleet_core.pool.model_names import NameConflict, claim_status
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_core.pool.validation_problems import PoolError
from cachefleet_operator.controlplane_client.pool_facts import UNASKED, Facts
from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.finding import Finding
from cachefleet_operator.status.pods import Pod, differing_images, worst
from cachefleet_operator.status.troubles import Trouble


@dataclass(frozen=True, slots=True)
class Workers:
    """Worker counts and failures from a Deployment; ``current`` where they are about the pool's present spec."""

    wanted: int = 0
    total: int = 0
    ready: int = 0
    updated: int = 0
    current: bool = False
    stalled: str = ""
    failure: str = ""

    @property
    def settled(self) -> bool:
        """Whether all wanted workers are ready and up to date, and there are no others."""
        return self.current and self.updated == self.total == self.wanted and self.ready == self.wanted


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of validating a pool's spec. ``invalid`` is (reason, message) where it cannot be used."""

    invalid: tuple[str, str] | None = None
    budget: BudgetPlan | None = None
    replicas: int | None = None
    """Workers wanted, where the spec could be read."""
    objective: float | None = None
    """Target hit ratio."""
    memory_mib: int | None = None
    """Memory of a device as the cluster tells it, where the spec does not say it."""

    @property
    def admitted(self) -> bool:
        """Whether workers may be started for it."""
        return self.invalid is None and self.budget is not None and not self.budget.refused


@dataclass(frozen=True, slots=True)
class Observations:
    """What is observed besides the Deployment."""

    pods: tuple[Pod, ...] = ()
    facts: Facts = UNASKED
    disagreement: str = ""
    """How the pool differs from another of its fleet."""
    name_conflict: NameConflict | None = None
    """Why its model is not asked for by its name alone."""
    paused: bool = False
    """Its rollout is paused because new workers fail."""
    foreign: tuple[str, ...] = ()
    """Pods that have its label and are not its own."""
    contested: str = ""
    """Who else writes its objects again and again, "" where nobody does."""
    ended: str = ""
    """How a pod failed recently, "" where none did; it may have been replaced."""
    inference_pool: Finding | None = None
    """What became of its InferencePool, None where none is wanted."""

    @property
    def trouble(self) -> Trouble | None:
        """The trouble to report among all pods, None where there is none."""
        return worst(self.pods)

    @property
    def differing_weights(self) -> str:
        """Two workers that loaded different images by one tag, "" where none are known."""
        return differing_images([pod for pod in self.pods if not pod.leaving])


NOTHING = Observations()


def workers_of(deployment: Mapping[str, Any] | None, *, wanted: int | None, applied: bool) -> Workers:
    """Worker counts of a live Deployment; ``applied`` where its manifest needed no change."""
    if deployment is None:
        return Workers(wanted=wanted or 0)
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    return Workers(
        wanted=spec.get("replicas", 1) if wanted is None else wanted,
        total=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=applied and status.get("observedGeneration") == deployment["metadata"].get("generation"),
        stalled=_message_of(conditions, "Progressing", "False"),
        failure=_message_of(conditions, "ReplicaFailure", "True"),
    )


def _message_of(conditions: Mapping[str, Mapping[str, Any]], kind: str, status: str) -> str:
    condition = conditions.get(kind)
    if condition is None or condition.get("status") != status:
        return ""
    return str(condition.get("message") or condition.get("reason") or kind)


Manifest = dict[str, Any]

MAX_PROBLEMS: Final = 5


def judge(document: Manifest) -> tuple[PrefixCachePool | None, Verdict]:
    """Validate a pool read from the API server, whose schema refuses most invalid specs before; None where invalid."""
    metadata = document["metadata"]
    given: dict[str, Any] = {name: document.get(name) for name in ("apiVersion", "kind", "spec")}
    known = ("name", "namespace", "uid", "generation", "labels", "annotations", "creationTimestamp")
    given["metadata"] = {name: metadata[name] for name in known if name in metadata}
    given["status"] = claim_status(document) or None
    try:
        pool = read_pool(given)
    except PoolError as error:
        lines = [str(problem) for problem in error.problems[:MAX_PROBLEMS]]
        more = len(error.problems) - len(lines)
        return None, Verdict((Reason.INVALID, "; ".join(lines) + (f"; and {more} more" if more else "")))
    objective = pool.spec.hit.objective
    return pool, Verdict(None, plan_budget(pool.spec), pool.spec.replicas, objective.ratio if objective else None)


def with_memory(
    pool: PrefixCachePool, verdict: Verdict, memory_mib: int | None, problem: str
) -> tuple[PrefixCachePool, Verdict]:
    """Pool and verdict with the memory of a device as the cluster tells it; None: the ``problem`` with that is told."""
    if memory_mib is None:
        known = plan_budget(pool.spec)
        return pool, replace(verdict, budget=replace(known, message=f"{known.message}: {problem}"))
    device = pool.spec.device.model_copy(update={"memory_mib": memory_mib})
    spec = pool.spec.model_copy(update={"device": device})
    whole = pool.model_copy(update={"spec": spec})
    return whole, replace(verdict, budget=plan_budget(spec), memory_mib=memory_mib)


def with_last_budget(verdict: Verdict, document: Manifest) -> Verdict:
    """Keep a decision on the budget that needed a worker's report, as in the status, while the spec is the same."""
    if verdict.budget is None or verdict.budget.admitted is not None:
        return verdict
    for condition in (document.get("status") or {}).get("conditions") or ():
        same = condition.get("observedGeneration") == document["metadata"]["generation"]
        said = condition.get("type") == "BudgetAdmitted" and condition.get("status") in {"True", "False"}
        if said and same and condition.get("reason") in set(BudgetReason):
            admitted, reason = condition["status"] == "True", BudgetReason(condition["reason"])
            budget = replace(verdict.budget, admitted=admitted, reason=reason, message=condition.get("message", ""))
            return replace(verdict, budget=budget)
    return verdict


def with_reported_sizes(pool: PrefixCachePool, verdict: Verdict, facts: Facts, current: frozenset[str]) -> Verdict:
    """The verdict with the bytes of a token that a worker reports; ``current`` names workers of the present spec.

    The report of another worker may admit the pool but not refuse it: a change of tensor parallelism, data type or
    block size may be what makes it fit.
    """
    told = [member for member in facts.members if member.block_bytes and not member.excluded]
    if not told:
        return verdict
    member = min(told, key=lambda each: each.name not in current)
    ours = member.name in current
    contract = facts.pool.contract if facts.pool and not ours else None
    block_size = contract.block_size if contract else 0
    budget = plan_budget(pool.spec, member.block_bytes // (block_size or pool.spec.block_size))
    return replace(verdict, budget=budget) if ours or budget.admitted else verdict
