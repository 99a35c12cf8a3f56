"""Everything that the conditions of a pool are drawn from (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachefleet_core.budget import BudgetPlan
from cachefleet_operator.controlplane.facts import UNASKED, Facts
from cachefleet_operator.status.pods import Pod, Trouble, worst


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
    objective: float | None = None
    """Hit ratio that is aimed at."""

    @property
    def admitted(self) -> bool:
        """Whether workers may be started for it."""
        return self.invalid is None and self.budget is not None and self.budget.admitted is not False


@dataclass(frozen=True, slots=True)
class Observations:
    """What is seen besides the Deployment."""

    pods: tuple[Pod, ...] = ()
    facts: Facts = UNASKED
    disagreement: str = ""
    """How the pool differs from another of its fleet."""
    paused: bool = False
    """Its rollout stands still because new workers fail."""
    ended: str = ""
    """How a pod failed of late, for which there may be another."""

    @property
    def trouble(self) -> Trouble | None:
        return worst(self.pods)


NOTHING = Observations()


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


def _said(conditions: Mapping[str, Mapping[str, Any]], kind: str, status: str) -> str:
    condition = conditions.get(kind)
    if condition is None or condition.get("status") != status:
        return ""
    return str(condition.get("message") or condition.get("reason") or kind)
