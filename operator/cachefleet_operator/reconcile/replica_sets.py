"""ReplicaSets of a pool's Deployment: which has the Deployment's template, and which others still have pods (pure).

Pods that somebody else's template started carry the pool's template digest as long as only other fields were written,
so they are told apart by their ReplicaSet, as the Deployment controller does. The controller does not finish a rollout
of a paused Deployment: it keeps the ReplicaSets in the proportion in which the pause met them. Once all but one are at
0 it scales that one up to all replicas, paused or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_operator.kube.objects import Ref

Manifest = Mapping[str, Any]

HASH: Final = "pod-template-hash"
"""The label by which a Deployment tells its ReplicaSets' pods apart."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """One ReplicaSet of a Deployment."""

    ref: Ref
    uid: str
    replicas: int
    """How many pods it is to have."""
    ready: int
    """How many of its pods are ready."""
    current: bool
    """Its template is the Deployment's."""


def replica_sets_of(deployment: Manifest, manifests: Iterable[Manifest]) -> tuple[ReplicaSet, ...]:
    """Those among these that a live Deployment controls."""
    uid, template = deployment["metadata"].get("uid"), _template(deployment)
    return tuple(_replica_set(each, template) for each in manifests if uid and _controller(each) == uid)


def can_pause(deployment: Manifest, replica_sets: Sequence[ReplicaSet]) -> bool:
    """Whether a live Deployment can be paused and its ReplicaSets of other templates scaled to 0 at once.

    There must be one of its present template, as none is made during a pause; and at most ``maxUnavailable`` pods may
    be missing after that, unless no other pod is ready now.
    """
    spec = deployment["spec"]
    unavailable = ((spec.get("strategy") or {}).get("rollingUpdate") or {}).get("maxUnavailable", 0)
    ready = sum(each.ready for each in replica_sets if each.current)
    enough = ready >= spec.get("replicas", 1) - int(unavailable)
    idle = not any(each.ready for each in replica_sets if not each.current)
    return any(each.current for each in replica_sets) and (enough or idle)


def outdated(replica_sets: Iterable[ReplicaSet]) -> list[Manifest]:
    """A manifest with no replicas for each that is of another template than the Deployment and is to have pods."""
    return [_without_pods(each) for each in replica_sets if not each.current and each.replicas]


def _replica_set(manifest: Manifest, template: Manifest) -> ReplicaSet:
    metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
    return ReplicaSet(
        Ref("ReplicaSet", metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        replicas=spec.get("replicas", 1),
        ready=status.get("readyReplicas", 0),
        current=_template(manifest) == template,
    )


def _without_pods(replica_set: ReplicaSet) -> Manifest:
    manifest = replica_set.ref.manifest()
    return {**manifest, "metadata": manifest["metadata"] | {"uid": replica_set.uid}, "spec": {"replicas": 0}}


def _controller(manifest: Manifest) -> str | None:
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def _template(owner: Manifest) -> dict[str, Any]:
    """The pod template of a Deployment or ReplicaSet, without the label that a ReplicaSet's has in addition."""
    template = owner["spec"]["template"]
    metadata = template.get("metadata") or {}
    labels = {name: text for name, text in (metadata.get("labels") or {}).items() if name != HASH}
    return {**template, "metadata": {**metadata, "labels": labels}}
