"""The words of a kubelet, written by hand: pods of this cluster never run."""

from __future__ import annotations

from e2e.cluster.kube import Kube, Object

NOW = "2026-01-01T00:00:00Z"


def ready(kube: Kube, pod: Object) -> None:
    """All its containers run and it takes traffic."""
    status = {
        "name": "engine",
        "ready": True,
        "restartCount": 0,
        "image": "i",
        "imageID": "i",
        "state": {"running": {}},
    }
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": NOW} for kind in ("Ready", "ContainersReady")]
    _write(kube, pod, {"phase": "Running", "conditions": conditions, "containerStatuses": [status]})


def waiting(kube: Kube, pod: Object, reason: str, message: str, *, restarts: int = 0) -> None:
    """Its engine does not come up."""
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom"}} if restarts else {}
    status = {
        "name": "engine",
        "ready": False,
        "restartCount": restarts,
        "image": "i",
        "imageID": "",
        "state": {"waiting": {"reason": reason, "message": message}},
        "lastState": ended,
    }
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": NOW}]
    _write(kube, pod, {"phase": "Pending", "conditions": conditions, "containerStatuses": [status]})


def unschedulable(kube: Kube, pod: Object, message: str) -> None:
    """No node takes it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    _write(kube, pod, {"phase": "Pending", "conditions": [condition | {"lastTransitionTime": NOW}]})


def without_volume(kube: Kube, pod: Object, reason: str, message: str) -> None:
    """It has a node, which cannot mount one of its volumes: only an event says so."""
    metadata = pod["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", **{key: metadata[key] for key in ("name", "namespace", "uid")}}
    event = {"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message, "count": 1}
    own = {"name": f"{metadata['name']}.1", "namespace": metadata["namespace"]}
    kube.create({**event, "metadata": own, "involvedObject": about, "firstTimestamp": NOW, "lastTimestamp": NOW})
    state = {"state": {"waiting": {"reason": "PodInitializing"}}, "ready": False, "restartCount": 0}
    engine = {"name": "engine", "image": "i", "imageID": "", **state}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": NOW}
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": NOW}
    _write(kube, pod, {"phase": "Pending", "conditions": [scheduled, unready], "containerStatuses": [engine]})


def _write(kube: Kube, pod: Object, status: Object) -> None:
    metadata = pod["metadata"]
    kube.patch("Pod", metadata["namespace"], metadata["name"], {"status": status}, subresource="status")
