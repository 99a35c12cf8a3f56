"""What to do about a pool: from what is wanted and what is there to a list of actions (pure).

Level-triggered: nothing here knows what happened, only what is. Carrying out a plan makes the next one empty, and a
plan that was cut off anywhere is continued by the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cachefleet_core.pool import API_VERSION, KIND
from cachefleet_operator import names
from cachefleet_operator.api import Ref
from cachefleet_operator.conditions import Verdict, status, workers_of
from cachefleet_operator.drift import holds
from cachefleet_operator.events import Subject, events_of

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object that is never overwritten."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object say what the manifest says."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell of a change; told already is as good."""

    event: Manifest


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the operator's fields of a pool's status."""

    manifest: Manifest


Action = Create | Apply | Emit | WriteStatus


@dataclass(frozen=True, slots=True)
class Desired:
    """What a pool asks for. Both lists are empty where no worker may be started."""

    verdict: Verdict
    create: tuple[Manifest, ...] = ()
    apply: tuple[Manifest, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """The pool as the API server has it, and those of its objects that exist."""

    pool: Manifest
    children: Mapping[Ref, Manifest] = field(default_factory=dict)


def plan(desired: Desired, observed: Observed, now: str) -> list[Action]:
    """All that is left to do, in the order in which it must be done."""
    if taken := foreign(desired, observed):
        verdict = replace(desired.verdict, invalid=("NameTaken", f"{taken} exists and is not this pool's"))
        return report(verdict, observed, now)
    work = _children(desired, observed)
    return [*work, *report(desired.verdict, observed, now, applied=not any(_is_deployment(action) for action in work))]


def report(verdict: Verdict, observed: Observed, now: str, *, applied: bool = True) -> list[Action]:
    """The events and the status that follow from a verdict and the live Deployment."""
    metadata = observed.pool["metadata"]
    live = observed.pool.get("status") or {}
    previous = live.get("conditions") or ()
    ref = Ref("Deployment", metadata["namespace"], names.deployment(metadata["name"]))
    deployment = observed.children.get(ref)
    ours = deployment if deployment and _is_ours(deployment) else None
    workers = workers_of(ours, wanted=verdict.replicas, applied=applied)
    wanted = status(
        verdict, workers, name=metadata["name"], generation=metadata["generation"], previous=previous, now=now
    )
    if holds(wanted, live):
        return []
    subject = Subject(metadata["name"], metadata["namespace"], metadata["uid"], metadata["resourceVersion"])
    told = events_of(previous, wanted["conditions"], subject, now=now)
    return [*(Emit(event) for event in told), WriteStatus(_status_manifest(metadata, wanted))]


def leaving(observed: Observed) -> bool:
    """Whether objects of an earlier pool of this name are still to be collected; until then its names are not free."""
    return any(
        "deletionTimestamp" in child["metadata"] or _owner(child) not in {None, observed.pool["metadata"]["uid"]}
        for child in observed.children.values()
    )


def foreign(desired: Desired, observed: Observed) -> str:
    """An object in the way that somebody else made, "" where there is none.

    A Secret with keys may be anybody's: it is only read.
    """
    for manifest in desired.apply:
        ref = Ref.of(manifest)
        child = observed.children.get(ref)
        if child is not None and _owner(child) is None and not _is_ours(child):
            return f"{ref.kind} {ref.name}"
    return ""


def _children(desired: Desired, observed: Observed) -> list[Action]:
    made: list[Action] = [Create(manifest) for manifest in desired.create if Ref.of(manifest) not in observed.children]
    changed = [
        Apply(manifest) for manifest in desired.apply if _drifted(manifest, observed.children.get(Ref.of(manifest)))
    ]
    return [*made, *changed]


def _drifted(manifest: Manifest, live: Manifest | None) -> bool:
    return live is None or not holds(manifest, live)  # its own digest is among what must hold


def _is_deployment(action: Action) -> bool:
    return isinstance(action, Apply) and action.manifest["kind"] == "Deployment"


def _owner(child: Manifest) -> str | None:
    owners = child["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner["kind"] == KIND and owner.get("controller")), None)


def _is_ours(child: Manifest) -> bool:
    return (child["metadata"].get("labels") or {}).get(names.MANAGED_BY) == names.OPERATOR


def _status_manifest(metadata: Mapping[str, Any], wanted: Manifest) -> Manifest:
    # With the version it was read at: a status about a pool that has changed meanwhile is refused.
    about = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": about, "status": wanted}
