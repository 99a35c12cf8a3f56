"""Worker pods that their ReplicaSet released, because a label that it selects by was removed (pure).

Such a pod runs on beside its replacement, with no owner, and would outlive its pool. Its labels are put back: the
ReplicaSet adopts it, and removes the worker that is worth least, as at any scale-in. What names a released pod's pool
is what nobody can edit: ``generateName``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachefleet_operator import names
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.reasons import Reason
from cachefleet_operator.reconcile.apply import Annotate, Emit
from cachefleet_operator.reconcile.replica_sets import HASH
from cachefleet_operator.status.events import Subject, event_of

UNLABELLED: Final = f"{names.MANAGED_BY}={names.OPERATOR},!{names.POOL_LABEL}"
"""Label selector of pods of ours that are of no pool any more."""

Manifest = Mapping[str, Any]


def readopted(subject: Subject, pods: Sequence[Manifest], *, now: str) -> list[Emit | Annotate]:
    """Label the pool's released pods again, with an event for each."""
    actions: list[Emit | Annotate] = []
    for pod in pods:
        if lost := _lost(subject.name, pod):
            actions += [Emit(_event(subject, pod, lost, now)), Annotate(_labelled(subject, pod, lost))]
    return actions


def _lost(pool: str, pod: Manifest) -> dict[str, str]:
    """The labels that a pod of the pool has no more; none where it goes, is owned or is another's."""
    metadata = pod["metadata"]
    made = re.fullmatch(rf"{re.escape(names.deployment(pool))}-([a-z0-9]+)-", metadata.get("generateName") or "")
    owned = any(owner.get("controller") for owner in metadata.get("ownerReferences") or ())
    if made is None or owned or "deletionTimestamp" in metadata:
        return {}
    labels = metadata.get("labels") or {}
    wanted = {names.POOL_LABEL: pool, HASH: made[1]}
    return {name: value for name, value in wanted.items() if name not in labels}


def _labelled(subject: Subject, pod: Manifest, lost: Mapping[str, str]) -> dict[str, Any]:
    manifest = Ref("Pod", subject.namespace, pod["metadata"]["name"]).manifest()
    manifest["metadata"] |= {"uid": pod["metadata"]["uid"], "labels": dict(lost)}
    return manifest


def _event(subject: Subject, pod: Manifest, lost: Mapping[str, str], now: str) -> dict[str, Any]:
    name = pod["metadata"]["name"]
    words = f"pod {name} had lost its label {' and '.join(lost)} and so its ReplicaSet; the label is put back, and one "
    advice = f"worker too many goes. To examine a pod apart, copy it: kubectl debug {name} --copy-to=NAME"
    return event_of(Reason.POD_RELEASED, words + advice, subject, now=now)
