"""A pool's worker pods, read from their manifests, and what keeps one from being ready (pure)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_operator import names
from cachefleet_operator.reasons import Reason

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
MAX_MESSAGE: Final = 300
CRASHES: Final = 2
"""Restarts from which on a container that is not ready counts as crash looping."""

_WAITING: Final[Mapping[str, Reason]] = {
    "CrashLoopBackOff": Reason.CRASH_LOOPING,
    "CreateContainerConfigError": Reason.CONTAINER_REFUSED,
    "CreateContainerError": Reason.CONTAINER_REFUSED,
    "ErrImageNeverPull": Reason.IMAGE_UNAVAILABLE,
    "ErrImagePull": Reason.IMAGE_UNAVAILABLE,
    "ImageInspectError": Reason.IMAGE_UNAVAILABLE,
    "ImagePullBackOff": Reason.IMAGE_UNAVAILABLE,
    "InvalidImageName": Reason.IMAGE_UNAVAILABLE,
    "RegistryUnavailable": Reason.IMAGE_UNAVAILABLE,
    "RunContainerError": Reason.CONTAINER_REFUSED,
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a pod from being ready, with the kubelet's or the scheduler's message."""

    reason: Reason
    pod: str
    container: str
    words: str
    lasting: bool
    """It does not pass by itself within seconds, and so pauses a rollout."""

    @property
    def message(self) -> str:
        """Pod, container and cause, the cause cut to MAX_MESSAGE characters."""
        where = f"pod {self.pod}" + (f", container {self.container}" if self.container else "")
        return f"{where}: {self.words[:MAX_MESSAGE]}"


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
    trouble: Trouble | None = None
    look_again: float | None = None
    """Seconds until it counts as unschedulable unless that changes; no event announces it. None otherwise."""


def pods_of(
    manifests: Sequence[Mapping[str, Any]], now: dt.datetime, *, grace_seconds: float, ready_seconds: float
) -> tuple[Pod, ...]:
    """Read a pool's pods, sorted by name, without those that ended. A pod is in trouble when it was unschedulable for
    ``grace_seconds`` or not ready for ``ready_seconds``: a Deployment's deadline is for rollouts, not for new workers.
    """
    seconds = (grace_seconds, ready_seconds)
    alive = (each for each in manifests if (each.get("status") or {}).get("phase") not in {"Failed", "Succeeded"})
    return tuple(sorted((_pod(each, now, *seconds) for each in alive), key=lambda pod: pod.name))


def ended(manifests: Sequence[Mapping[str, Any]], now: dt.datetime, *, seconds: float) -> str:
    """How the youngest failed pod failed, "" where it is older than ``seconds``: a node may refuse pod after pod."""
    failed = [each for each in manifests if (each.get("status") or {}).get("phase") == "Failed"]
    found = max(failed, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)
    if found is None or _age(str(found["metadata"].get("creationTimestamp")), now) >= seconds:
        return ""
    words = [str(found["status"].get(part)) for part in ("reason", "message") if found["status"].get(part)]
    return f"pod {found['metadata']['name']} failed: {': '.join(words)}"[:MAX_MESSAGE]


def worst(pods: Sequence[Pod]) -> Trouble | None:
    """The trouble to report: the first lasting one, else the first, None where there is none."""
    troubles = [pod.trouble for pod in pods if pod.trouble is not None]
    return next((trouble for trouble in troubles if trouble.lasting), troubles[0] if troubles else None)


def _pod(manifest: Mapping[str, Any], now: dt.datetime, grace_seconds: float, ready_seconds: float) -> Pod:
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    leaving, ready = "deletionTimestamp" in metadata, conditions.get("Ready", {}).get("status") == "True"
    trouble, again = None, None
    if not leaving and not ready:
        trouble = next(_container_troubles(metadata["name"], status), None)
        if trouble is None:
            trouble, again = _unscheduled(metadata["name"], conditions.get("PodScheduled", {}), now, grace_seconds)
        if trouble is None and again is None:
            trouble = _late(metadata, conditions.get("Ready", {}), now, ready_seconds)
    annotations = metadata.get("annotations") or {}
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        template=annotations.get(names.TEMPLATE, ""),
        ready=ready,
        leaving=leaving,
        cost=_integer(annotations.get(DELETION_COST)),
        trouble=trouble,
        look_again=again,
    )


def _container_troubles(pod: str, status: Mapping[str, Any]) -> Iterator[Trouble]:
    for part in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(part) or ():
            if trouble := _container_trouble(pod, container):
                yield trouble


def _container_trouble(pod: str, container: Mapping[str, Any]) -> Trouble | None:
    state, restarts = container.get("state") or {}, container.get("restartCount") or 0
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    reason = _WAITING.get(waiting.get("reason", ""))
    failed = ended.get("reason") != "Completed" and ended.get("exitCode", 1) != 0
    if reason is None and ended and failed and not container.get("ready") and restarts >= CRASHES:
        reason = Reason.CRASH_LOOPING
    if ended.get("reason") == "OOMKilled" and not container.get("ready") and reason in {None, Reason.CRASH_LOOPING}:
        reason = Reason.OUT_OF_MEMORY
    if reason is None:
        return None
    crashes = reason in {Reason.CRASH_LOOPING, Reason.OUT_OF_MEMORY}
    words = _last_words(ended, restarts) if crashes else f"{waiting.get('reason')}: {waiting.get('message') or ''}"
    return Trouble(reason, pod, str(container.get("name", "")), words.strip(": "), not crashes or restarts >= CRASHES)


def _last_words(ended: Mapping[str, Any], restarts: int) -> str:
    how = f"{ended.get('reason') or 'ended'}, exit code {ended.get('exitCode')}" if ended else "ended"
    said = str(ended.get("message") or "").strip()
    return f"restarted {restarts} times, last: {how}" + (f": {said}" if said else "")


def _unscheduled(
    pod: str, condition: Mapping[str, Any], now: dt.datetime, grace_seconds: float
) -> tuple[Trouble | None, float | None]:
    if condition.get("status") != "False" or condition.get("reason") != "Unschedulable":
        return None, None
    left = grace_seconds - _age(str(condition.get("lastTransitionTime") or ""), now)
    if left > 0:
        return None, left
    return Trouble(Reason.UNSCHEDULABLE, pod, "", str(condition.get("message") or "no node fits"), lasting=False), None


def _late(
    metadata: Mapping[str, Any], condition: Mapping[str, Any], now: dt.datetime, ready_seconds: float
) -> Trouble | None:
    since = str(condition.get("lastTransitionTime") or metadata.get("creationTimestamp") or now.isoformat())
    if _age(since, now) < ready_seconds:
        return None
    return Trouble(Reason.STALLED, metadata["name"], "", f"not ready since {since}", lasting=False)


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
