"""What keeps a worker pod from being ready: which container, why, since when, and what to do about it (pure)."""

from __future__ import annotations

import datetime as dt
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_core.exit_statuses import KEY_REFUSED
from cachefleet_operator.reasons import Reason

MAX_MESSAGE: Final = 300
CRASHES: Final = 2
"""Restarts from which on a container counts as crash looping."""
NOTICE_SECONDS: Final = 30.0
"""What may pass between a container's end and the pod's being not ready for it."""
SIGNALLED: Final = 128
"""A container that a signal ended has an exit code of this plus the signal's number."""

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
_LOGS: Final = "its last words: kubectl logs {pod} -c {container} --previous"
_ADVICE: Final[Mapping[Reason, str]] = {
    Reason.CRASHED: f"it is started again; {_LOGS}",
    Reason.CRASH_LOOPING: _LOGS,
    Reason.OUT_OF_MEMORY: f"raise its memory limit in podTemplate; {_LOGS}",
    Reason.STALLED: "what it waits for: kubectl describe pod {pod}",
}
_OLD_FIRST: Final = "or let an old worker go first: rollout.maxSurge: 0, maxUnavailable: 1"
"""Where a new worker waits beside an old one that may hold what it needs."""


@dataclass(frozen=True, slots=True)
class _Cause:
    """A pattern of a message, and what to do; ``held``: an old worker may have what is missing."""

    pattern: str
    advice: str
    held: bool = False


_NODE: Final = (
    "its node mounts no images: it needs containerd 2.1 or CRI-O 1.31, and the kubelet of Kubernetes 1.35, or of 1.33 "
    "with the feature gate ImageVolume on"
)
_CAUSES: Final[Mapping[Reason, tuple[_Cause, ...]]] = {
    Reason.UNSCHEDULABLE: (
        _Cause(r"claim \"?[^ ]+\"? not found", "create that claim, or correct its name in podTemplate"),
        _Cause(r"unbound immediate PersistentVolumeClaims?", "its claim is bound to no volume: kubectl describe pvc"),
        _Cause(r"ReadWriteOncePod", "only one pod may have its volume: use a claim that several may", held=True),
        _Cause(r"volume node affinity|volume zone", "its volume is of another node or zone: use one that nodes share"),
        _Cause(r"", "add nodes, or ask for less", held=True),
    ),
    Reason.DEVICES_UNAVAILABLE: (
        _Cause(
            r"(?i)(deviceclass|device class) .*(does not exist|not found)", "create that class, or correct its name"
        ),
        _Cause(r"does not exist|not found", "create what it names, or correct spec.device.claims"),
        _Cause(
            r"such devices being tainted", "see to those devices, add nodes with others, or claim others", held=True
        ),
        _Cause(r"is not made|being deleted", "what it waits for: kubectl describe pod {pod}"),
        _Cause(r"", "add nodes with such devices, or claim fewer or others", held=True),
    ),
    Reason.VOLUME_UNAVAILABLE: (
        _Cause(
            r"Multi-Attach|already (exclusively )?(attached|used|in use)|in use by",
            "only one node may mount it: use a claim that several nodes may (ReadWriteMany)",
            held=True,
        ),
        _Cause(r"no volume plugin matched", _NODE),
        _Cause(r"not found|non-existent|does not exist", "create what it names, or correct its name in podTemplate"),
        _Cause(r"", "correct the volume that it names: kubectl describe pod {pod}"),
    ),
    Reason.IMAGE_UNAVAILABLE: (
        _Cause(r"mismatched image rootfs and manifest layers", "it is an OCI artifact: build an image of its files"),
        _Cause(r"", "correct the image, or give pull secrets"),
    ),
    Reason.CONTAINER_REFUSED: (
        _Cause(r'failed to mkdir ""', _NODE),  # containerd before 2.1, of a mount without a path on the node
        _Cause(
            r"failed to ensure image subpath",
            "the image has no such folder: correct subPath; or it is an OCI artifact: build an image of its files",
        ),
        _Cause(r"", "correct what it names: kubectl describe pod {pod}"),
    ),
}
"""By reason; the first whose pattern matches counts."""
_CRASHES: Final = frozenset({Reason.CRASHED, Reason.CRASH_LOOPING, Reason.OUT_OF_MEMORY})


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a pod from being ready, with the kubelet's or the scheduler's message."""

    reason: Reason
    pod: str
    container: str
    detail: str
    lasting: bool
    """It does not pass by itself within seconds, and so pauses a rollout."""
    since: str = ""
    """Timestamp of its beginning, "" where it is not known."""
    surging: bool = False
    """It waits beside an older worker, in a rollout that starts new ones first."""

    @property
    def message(self) -> str:
        """Pod, container, cause (cut to MAX_MESSAGE characters), since when, and what to do."""
        where = f"pod {self.pod}" + (f", container {self.container}" if self.container else "")
        since = f", since {self.since}" if self.since else ""
        advice = self._advice().format(pod=self.pod, container=self.container)
        return f"{where}: {self.detail[:MAX_MESSAGE]}{since}" + (f"; {advice}" if advice else "")

    def _advice(self) -> str:
        cause = next((cause for cause in _CAUSES.get(self.reason, ()) if re.search(cause.pattern, self.detail)), None)
        if cause is None:
            return _ADVICE.get(self.reason, "")
        return f"{cause.advice}, {_OLD_FIRST}" if cause.held and self.surging else cause.advice


def of_containers(pod: str, status: Mapping[str, Any], since: str) -> Iterator[Trouble]:
    """Of the containers of a pod that is not ready since then: one that waits, or ended after it was last ready."""
    for part in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(part) or ():
            if trouble := _of_container(pod, container, since, stays=part == "containerStatuses"):
                yield trouble


def _of_container(pod: str, container: Mapping[str, Any], since: str, *, stays: bool) -> Trouble | None:
    state, restarts = container.get("state") or {}, container.get("restartCount") or 0
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    if ended.get("exitCode") == KEY_REFUSED and container.get("name") == "agent" and not container.get("ready"):
        said = str(ended.get("message") or "the engine does not take the worker key").strip()
        return Trouble(Reason.WORKER_KEY_REFUSED, pod, "agent", said, lasting=True, since=since)
    reason = _WAITING.get(waiting.get("reason", "")) or _crash(container, ended, since, stays=stays)
    if ended.get("reason") == "OOMKilled" and reason in _CRASHES:
        reason = Reason.OUT_OF_MEMORY
    if reason is None:
        return None
    crashes = reason in _CRASHES
    words = _last_words(ended, restarts) if crashes else f"{waiting.get('reason')}: {waiting.get('message') or ''}"
    lasting = not crashes or restarts >= CRASHES
    begun = str(ended.get("finishedAt") or since) if crashes else since
    return Trouble(reason, pod, str(container.get("name", "")), words.strip(": "), lasting, begun)


def _crash(container: Mapping[str, Any], ended: Mapping[str, Any], since: str, *, stays: bool) -> Reason | None:
    """Whether its end is why the pod is not ready: it may be running again, and still load its model.

    One that ``stays`` has crashed with exit code 0, too: vLLM ends so when its engine process dies.
    """
    if not ended or (not stays and ended.get("exitCode", 1) == 0):
        return None
    if not _recent(str(ended.get("finishedAt") or ""), since, unknown=not container.get("ready")):
        return None
    return Reason.CRASH_LOOPING if (container.get("restartCount") or 0) >= CRASHES else Reason.CRASHED


def _recent(finished: str, since: str, *, unknown: bool) -> bool:
    try:
        end, begin = dt.datetime.fromisoformat(finished), dt.datetime.fromisoformat(since)
        return (end - begin).total_seconds() >= -NOTICE_SECONDS
    except (ValueError, TypeError):
        return unknown


def _last_words(ended: Mapping[str, Any], restarts: int) -> str:
    code, said = ended.get("exitCode"), str(ended.get("message") or "").strip()
    how = f"{ended.get('reason') or 'ended'}, exit code {code}{_signal(code)}" if ended else "ended"
    times = f"restarted {restarts} {'time' if restarts == 1 else 'times'}, last: " if restarts else ""
    return times + how + (f": {said}" if said else "")


def _signal(code: Any) -> str:
    try:
        return f" ({signal.Signals(int(code) - SIGNALLED).name})"
    except (ValueError, TypeError):
        return ""
