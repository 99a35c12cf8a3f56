"""A pool's worker pods, read from their manifests, and what keeps one from being ready (pure)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from cachefleet_core.pool.worker_pods import is_replica_set
from cachefleet_operator import names
from cachefleet_operator.devices.waiting_claims import keeps_from_nodes, waits_for_claims
from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.troubles import MAX_MESSAGE, Trouble, of_containers
from cachefleet_operator.status.volume_failures import LOOK_SECONDS, MOUNT_SECONDS, waits

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True, slots=True)
class Pod:
    """One worker pod."""

    name: str
    uid: str = ""
    template: str = ""
    """Digest of the pod template it was made from."""
    ready: bool = False
    leaving: bool = False
    cost: int | None = None
    """Its deletion-cost annotation; None where it has none."""
    since: dt.datetime | None = None
    """Since when all its containers run; None where one does not."""
    images: frozenset[tuple[str, str]] = frozenset()
    """Of its volumes made of images each with its digest, where the kubelet reports that (ImageVolumeWithDigest)."""
    trouble: Trouble | None = None
    look_again: float | None = None
    """Seconds after which to look at it again, as no event announces that it is unschedulable for long, or what its
    volumes do. None otherwise.
    """


_STATUSES: Final = ("initContainerStatuses", "containerStatuses")


def pods_of(
    manifests: Sequence[Mapping[str, Any]],
    now: dt.datetime,
    *,
    grace_seconds: float,
    ready_seconds: float,
    volumes: Mapping[str, str] = MappingProxyType({}),
    claims: Mapping[str, str] = MappingProxyType({}),
    surges: bool = False,
) -> tuple[Pod, ...]:
    """Read a pool's pods, sorted by name, without those that ended. A pod is in trouble when it was unschedulable for
    ``grace_seconds`` or not ready for ``ready_seconds``: a Deployment's deadline is for rollouts, not for new workers.

    ``volumes`` and ``claims`` have what keeps volumes and devices from pods, by their names. With ``surges`` a pod that
    waits beside one of another template may be waiting for what that one holds.
    """
    alive = [each for each in manifests if (each.get("status") or {}).get("phase") not in {"Failed", "Succeeded"}]
    surging = surges and len(_templates(alive)) > 1
    context = _Context(now, grace_seconds, ready_seconds, volumes, claims, surging=surging)
    return tuple(sorted((_pod(each, context) for each in alive), key=lambda pod: pod.name))


@dataclass(frozen=True, slots=True)
class _Context:
    """What pods are judged by."""

    now: dt.datetime
    grace_seconds: float
    ready_seconds: float
    volumes: Mapping[str, str]
    claims: Mapping[str, str]
    surging: bool


def _templates(manifests: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str((each["metadata"].get("annotations") or {}).get(names.TEMPLATE, "")) for each in manifests}


def ended(manifests: Sequence[Mapping[str, Any]], now: dt.datetime, *, seconds: float) -> str:
    """How the youngest failed pod failed, "" where it is older than ``seconds``: a node may refuse pod after pod."""
    failed = [each for each in manifests if (each.get("status") or {}).get("phase") == "Failed"]
    found = max(failed, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)
    if found is None or _age(str(found["metadata"].get("creationTimestamp")), now) >= seconds:
        return ""
    words = [str(found["status"].get(part)) for part in ("reason", "message") if found["status"].get(part)]
    return f"pod {found['metadata']['name']} failed: {': '.join(words)}"[:MAX_MESSAGE]


def owned(manifest: Mapping[str, Any], pool: str) -> bool:
    """Whether a pod belongs to a ReplicaSet of the Deployment of the pool of this name."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return any(
        owner.get("controller") and owner.get("kind") == "ReplicaSet" and is_replica_set(str(owner.get("name")), pool)
        for owner in owners
    )


def foreign(manifests: Sequence[Mapping[str, Any]], pool: str) -> tuple[str, ...]:
    """Names of the pods that have the pool's label and are not its own, without those that are ending or ended."""
    found = (each for each in manifests if not owned(each, pool) and "deletionTimestamp" not in each["metadata"])
    alive = (each for each in found if (each.get("status") or {}).get("phase") not in {"Failed", "Succeeded"})
    return tuple(sorted(str(each["metadata"]["name"]) for each in alive))


def worst(pods: Sequence[Pod]) -> Trouble | None:
    """The trouble to report: the first lasting one, else the first, None where there is none."""
    troubles = [pod.trouble for pod in pods if pod.trouble is not None]
    return next((trouble for trouble in troubles if trouble.lasting), troubles[0] if troubles else None)


def differing_images(pods: Sequence[Pod]) -> str:
    """Two pods that have different images in one volume, "" where there are none: a tag was moved between them."""
    holders: dict[str, tuple[str, Pod]] = {}
    for pod in pods:
        for volume, digest in sorted(pod.images):
            first, other = holders.setdefault(volume, (digest, pod))
            if first != digest:
                return f"pod {other.name} has the weights {first}, pod {pod.name} {digest}"
    return ""


def _images(status: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    mounts = [mount for each in status.get("containerStatuses") or () for mount in each.get("volumeMounts") or ()]
    images = ((mount["name"], (mount.get("volumeStatus") or {}).get("image") or {}) for mount in mounts)
    return frozenset((name, str(image["imageRef"])) for name, image in images if image.get("imageRef"))


def _pod(manifest: Mapping[str, Any], context: _Context) -> Pod:
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    leaving, ready = "deletionTimestamp" in metadata, conditions.get("Ready", {}).get("status") == "True"
    trouble, again = None, None
    if not leaving and not ready:
        trouble = next(of_containers(metadata["name"], status, _since(metadata, conditions)), None)
        if trouble is None:
            trouble, again = _unscheduled(manifest, conditions.get("PodScheduled", {}), context)
        if trouble is None and again is None:
            trouble, again = _without_volume(manifest, conditions.get("PodScheduled", {}), context)
        if trouble is None:
            trouble = _late(metadata["name"], _since(metadata, conditions), context)
    annotations = metadata.get("annotations") or {}
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        template=annotations.get(names.TEMPLATE, ""),
        ready=ready,
        leaving=leaving,
        cost=_integer(annotations.get(DELETION_COST)),
        since=_running_since(status),
        images=_images(status),
        trouble=trouble,
        look_again=again,
    )


def _running_since(status: Mapping[str, Any]) -> dt.datetime | None:
    """The start of the container that started last; init containers that ended are not asked."""
    first, last = ([each.get("state") or {} for each in status.get(part) or ()] for part in _STATUSES)
    asked = [*(state for state in first if "terminated" not in state), *last]
    starts = [str((state.get("running") or {}).get("startedAt") or "") for state in asked]
    try:
        return max(map(dt.datetime.fromisoformat, starts), default=None)
    except ValueError:
        return None


def _unscheduled(
    manifest: Mapping[str, Any], condition: Mapping[str, Any], context: _Context
) -> tuple[Trouble | None, float | None]:
    refused = condition.get("status") == "False" and condition.get("reason") == "Unschedulable"
    if not refused and not waits_for_claims(manifest):
        return None, None
    pod, metadata = str(manifest["metadata"]["name"]), manifest["metadata"]
    since = str(condition.get("lastTransitionTime") or metadata.get("creationTimestamp") or "")
    claim, said = context.claims.get(pod, ""), str(condition.get("message") or "no node fits") if refused else ""
    left = context.grace_seconds - _age(since, context.now)
    if left > 0 or not (claim or said):
        return None, left if left > 0 else LOOK_SECONDS
    reason, words = Reason.UNSCHEDULABLE, said
    if keeps_from_nodes(claim, said):
        reason, words = Reason.DEVICES_UNAVAILABLE, ": ".join(filter(None, (claim, said)))
    trouble = Trouble(reason, pod, "", words, lasting=False, since=since, surging=context.surging)
    return trouble, LOOK_SECONDS if claim else None


def _without_volume(
    manifest: Mapping[str, Any], condition: Mapping[str, Any], context: _Context
) -> tuple[Trouble | None, float | None]:
    waited, pod = waits(manifest, context.now), str(manifest["metadata"]["name"])
    if waited is None:
        return None, None
    again = LOOK_SECONDS if waited >= MOUNT_SECONDS else MOUNT_SECONDS - waited
    if not (words := context.volumes.get(pod)):
        return None, again
    since, surging = str(condition.get("lastTransitionTime") or ""), context.surging
    return Trouble(Reason.VOLUME_UNAVAILABLE, pod, "", words, lasting=False, since=since, surging=surging), again


def _late(pod: str, since: str, context: _Context) -> Trouble | None:
    if _age(since or context.now.isoformat(), context.now) < context.ready_seconds:
        return None
    return Trouble(Reason.STALLED, pod, "", "not ready", lasting=False, since=since)


def _since(metadata: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> str:
    """Since when a pod that is not ready is not."""
    return str(conditions.get("Ready", {}).get("lastTransitionTime") or metadata.get("creationTimestamp") or "")


def _age(stamp: str, now: dt.datetime) -> float:
    """Age in seconds; infinite for a timestamp that cannot be parsed."""
    try:
        return (now - dt.datetime.fromisoformat(stamp)).total_seconds()
    except (ValueError, TypeError):
        return float("inf")


def _integer(text: Any) -> int | None:
    try:
        return int(text)
    except (TypeError, ValueError):
        return None
