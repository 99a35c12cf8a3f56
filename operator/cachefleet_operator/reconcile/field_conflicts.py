"""Conflicts with another writer of an object: how often its edit is undone, and the message (pure).

A few edits in a row are undone at once, as those of a person who errs. Who goes on is another writer: an autoscaler of
the wrong object, another controller. Each undoing of a Deployment may start and end pods, so it is undone less and
less often from then on, until the other one has been quiet for a while. Where the pods' template is what is written,
the Deployment is paused meanwhile: what the other writes replaces no worker. Pods that it had started are ended.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_operator.kube.foreign_edits import Edit
from cachefleet_operator.kube.objects import Ref
from cachefleet_runtime.backoff import backoff

AT_ONCE: Final = 3
"""Edits in a row that are undone at once."""
FORGOTTEN_SECONDS: Final = 600.0
"""After how long a single edit is a first one again."""
QUIET_SECONDS: Final = 3600.0
"""How long another writer must have been quiet until there is none any more."""
SCALER: Final = "kube-controller-manager"
"""Field manager of a HorizontalPodAutoscaler, which changes the number of replicas by the subresource scale."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """Seconds between undoings: the first, doubled each time up to the longest."""

    first: float
    longest: float


_PODS: Final = _Pace(60.0, 1800.0)
"""Where undoing starts or ends pods."""
_ROLLING: Final = _Pace(5.0, 60.0)
"""Where pods are being replaced as long as it is not undone."""
_OTHERS: Final = _Pace(5.0, 5.0)
"""Where neither is so."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Edits of one object that were undone lately."""

    ref: Ref
    edit: Edit
    """The last of them."""
    count: int
    last: dt.datetime
    of_template: bool = False
    """One of them changed a Deployment's pods."""

    @property
    def contested(self) -> bool:
        """Whether there is another writer."""
        return self.count >= AT_ONCE

    @property
    def keeps_pods(self) -> bool:
        """Whether no pod is to be replaced by what the other one writes again and again."""
        return self.contested and self.of_template

    def over(self, now: dt.datetime) -> bool:
        """Whether the other one has been quiet for long enough."""
        return self._age(now) >= (QUIET_SECONDS if self.contested else FORGOTTEN_SECONDS)

    def wait(self, edit: Edit, now: dt.datetime, *, paused: bool) -> float:
        """Seconds until this edit may be undone; ``paused`` where the Deployment replaces no pods."""
        first_of_template = edit.template and not self.of_template
        if not self.contested or first_of_template:
            return 0.0
        pace = _ROLLING if edit.template and not paused else _PODS if edit.scales else _OTHERS
        pause = backoff(self.count - AT_ONCE, first=pace.first, longest=pace.longest)
        return max(0.0, pause - self._age(now))

    def _age(self, now: dt.datetime) -> float:
        return (now - self.last).total_seconds()

    @property
    def of_autoscaler(self) -> bool:
        """Whether it is a HorizontalPodAutoscaler that writes."""
        return self.contested and self.edit.scales and self.edit.manager == SCALER

    def message(self, pool: str, *, scaler: str = "") -> str:
        """The status message of the conflict; ``scaler`` is the autoscaler's name, "" where it is not known."""
        who = self.edit.manager + (f" (by {self.edit.subresource})" if self.edit.subresource else "")
        said = (
            f"{who} changes {self.edit.field} of {self.ref.kind} {self.ref.name}, which was set back {self.count} times"
        )
        now = f"last at {self.last:%Y-%m-%dT%H:%M:%SZ}; it is set back less often while that goes on"
        return f"{said}, {now}. {self._advice(pool, scaler)}"

    def _advice(self, pool: str, scaler: str) -> str:
        if self.edit.field != "spec.replicas":
            return f"Stop it, and edit PrefixCachePool {pool} instead (pods: spec.podTemplate)"
        target = f"PrefixCachePool {pool} (cachefleet.io/v1alpha1)"
        if self.edit.manager == SCALER:
            who = scaler or f"A HorizontalPodAutoscaler (kubectl get hpa,scaledobject -n {self.ref.namespace})"
            return f"{who} has this Deployment as its target: name {target} there"
        return f"Scale {target} instead: kubectl scale pcp {pool} --replicas=N"


def after(before: Conflict | None, ref: Ref, edit: Edit, now: dt.datetime) -> Conflict:
    """The conflict of an object once this edit of it was undone, too; ``before`` may be over."""
    if before is None or before.over(now):
        before = Conflict(ref, edit, 0, now)
    return Conflict(ref, edit, before.count + 1, now, of_template=before.of_template or edit.template)


def autoscaler_of(deployment: str, autoscalers: Iterable[Mapping[str, Any]]) -> str:
    """The autoscaler among these whose target is the Deployment of this name, and its ScaledObject; "" for none."""
    for each in autoscalers:
        target, metadata = (each.get("spec") or {}).get("scaleTargetRef") or {}, each["metadata"]
        if (target.get("kind"), target.get("name")) == ("Deployment", deployment):
            owners = (one for one in metadata.get("ownerReferences") or () if one.get("kind") == "ScaledObject")
            behind = "".join(f" of ScaledObject {one['name']}" for one in owners)
            return f"HorizontalPodAutoscaler {metadata['name']}{behind}"
    return ""


class FieldConflicts:
    """What was undone of each object lately. At most one entry for each object that a pool may own."""

    def __init__(self) -> None:
        self._conflicts: dict[Ref, Conflict] = {}

    def among(self, refs: Iterable[Ref], now: dt.datetime) -> dict[Ref, Conflict]:
        """Those of these objects that are not over."""
        found = {ref: self._conflicts[ref] for ref in refs if ref in self._conflicts}
        return {ref: one for ref, one in found.items() if not one.over(now)}

    def undone(self, edits: Mapping[Ref, Edit], now: dt.datetime) -> None:
        """Record that these edits were undone."""
        for ref, edit in edits.items():
            self._conflicts[ref] = after(self._conflicts.get(ref), ref, edit, now)

    def forget(self, refs: Iterable[Ref]) -> None:
        """Drop the entries of these objects."""
        for ref in refs:
            self._conflicts.pop(ref, None)
