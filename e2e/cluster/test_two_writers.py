"""Others that write what belongs to a pool, before a real API server and its controllers: told, bounded, prevented."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from e2e.cluster import kubelet
from e2e.cluster.bench import Bench
from e2e.cluster.kube import APPLY, Object, Refused, path, until
from e2e.cluster.test_operator_lifecycle import pods, running, scale
from tests.chart import helm

pytestmark = pytest.mark.cluster

FIGHT_SECONDS = 15.0
"""How long the other one writes on: without an end to it, some pods a second are started and ended."""


def test_who_scales_the_deployment_starts_few_pods_and_is_told_of_the_pool(bench: Bench) -> None:
    bench.operator()
    running(bench)
    _fight(bench, lambda live: live["spec"]["replicas"] == 2, partial(scale, bench, 5, manager="kubectl"))
    condition = until(lambda: _conflict(bench))
    assert "kubectl (by scale) changes spec.replicas of Deployment demo-workers" in condition["message"]
    assert "kubectl scale pcp demo --replicas=N" in condition["message"]
    assert _started(bench) <= 2 + 4 * 3
    assert [each["type"] for each in bench.events() if each["reason"] == "FieldConflict"] == ["Warning"]
    bench.edit(replicas=3)
    until(lambda: bench.kube.read("Deployment", bench.namespace, "demo-workers")["spec"]["replicas"] == 3)


def test_an_autoscaler_of_the_wrong_object_is_named(bench: Bench) -> None:
    """Written by hand: the real one acts every fifteen seconds."""
    bench.operator()
    running(bench)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "demo-workers"}
    metadata = {"name": "keda-hpa-chats", "namespace": bench.namespace}
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
    }
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 5, "metrics": [metric]}
    hpa = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}
    bench.kube.create(hpa)
    for _ in range(3):
        until(lambda: bench.kube.read("Deployment", bench.namespace, "demo-workers")["spec"]["replicas"] == 2)
        scale(bench, 3, manager="kube-controller-manager")
    message = until(lambda: _conflict(bench))["message"]
    named = "HorizontalPodAutoscaler keda-hpa-chats has this Deployment as its target: name PrefixCachePool demo"
    assert named in message


def test_a_field_manager_that_fights_for_the_pods_replaces_none(bench: Bench) -> None:
    bench.operator()
    running(bench, rollout={"maxUnavailable": 1, "maxSurge": 1})
    serving = {pod["metadata"]["uid"] for pod in pods(bench)}
    theirs = {"containers": [{"name": "engine", "image": "example.org/theirs:1"}]}
    wrote = partial(_apply, bench, {"spec": {"template": {"spec": theirs}}}, "argocd-controller")
    for _ in range(3):  # as somebody who errs, and is told so by nobody yet
        wrote()
        until(lambda: _image(bench) == "example.org/vllm:1")
    until(lambda: bench.kube.read("Deployment", bench.namespace, "demo-workers")["spec"].get("paused"))
    kept = until(lambda: _all_ready(bench))
    _fight(bench, lambda _: _image(bench) == "example.org/vllm:1", wrote)
    condition = until(lambda: _conflict(bench))
    assert "argocd-controller changes spec.template.spec.containers[engine].image" in condition["message"]
    assert {pod["metadata"]["uid"] for pod in pods(bench)} == kept
    assert len(serving & kept) >= 1, "those that were ended before the pause made room for the next"
    bench.edit(engine={"image": "example.org/vllm:2"})
    until(lambda: "example.org/vllm:2" in {pod["spec"]["containers"][0]["image"] for pod in pods(bench)})


def test_the_admission_policy_lets_nobody_else_write(bench: Bench) -> None:
    """Of a pool; what belongs to none is everybody's."""
    _guard(bench)
    bench.operator()
    running(bench)
    until(lambda: _forbidden(partial(scale, bench, 0, manager="kubectl")))
    edits: tuple[Callable[[], object], ...] = (
        partial(bench.kube.patch, "Deployment", bench.namespace, "demo-workers", {"spec": {"replicas": 0}}),
        partial(bench.kube.delete, "Deployment", bench.namespace, "demo-workers"),
        partial(bench.kube.delete, "Service", bench.namespace, "demo-workers"),
        partial(bench.kube.patch, "Service", bench.namespace, "demo-workers", _label("cachefleet.io/pool", None)),
        partial(bench.kube.patch, "ConfigMap", bench.namespace, "demo-policy", {"data": {"policy.json": "{}"}}),
        partial(bench.kube.patch, "Secret", bench.namespace, "demo-worker-keys", {"data": {"worker.key": "eA=="}}),
        partial(bench.kube.delete, "PodDisruptionBudget", bench.namespace, "demo-workers"),
    )
    for edit in edits:
        assert "belongs to a PrefixCachePool" in _forbidden(edit)
    assert "belongs to a PrefixCachePool" in _forbidden(partial(_delete_replica_sets, bench))
    bench.kube.patch("Service", bench.namespace, "demo-workers", _label("team", "a"))
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": bench.namespace}}
    bench.kube.create(other)
    bench.kube.patch("ConfigMap", bench.namespace, "other", {"data": {"a": "b"}})
    bench.kube.delete("ConfigMap", bench.namespace, "other")
    until(lambda: len(pods(bench)) == 2)
    bench.kube.delete("Pod", bench.namespace, pods(bench)[0]["metadata"]["name"])
    bench.edit(replicas=3)
    until(lambda: len(pods(bench)) == 3)
    bench.kube.delete("PrefixCachePool", bench.namespace, "demo")
    until(lambda: bench.child("Deployment") is None and bench.child("Secret") is None)


def _fight(bench: Bench, undone: Callable[[Object], bool], write: Callable[[], object]) -> None:
    """Write again whenever it was undone."""
    end = time.monotonic() + FIGHT_SECONDS
    while time.monotonic() < end:
        if undone(bench.kube.read("Deployment", bench.namespace, "demo-workers")):
            write()
        time.sleep(0.05)


def _apply(bench: Bench, fields: Object, manager: str) -> None:
    metadata = {"name": "demo-workers", "namespace": bench.namespace}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, **fields}
    query = {"fieldManager": manager, "force": "true"}
    bench.kube.request("PATCH", path("Deployment", bench.namespace, "demo-workers"), manifest, form=APPLY, query=query)


def _conflict(bench: Bench) -> Object | None:
    found = bench.condition("Degraded")
    return found if found and found["reason"] == "FieldConflict" else None


def _image(bench: Bench) -> str:
    live = bench.kube.read("Deployment", bench.namespace, "demo-workers")
    return str(live["spec"]["template"]["spec"]["containers"][0]["image"])


def _all_ready(bench: Bench) -> set[str]:
    """The pods once there are two, of the pool's own image and all of them played ready; before that none."""
    found = pods(bench)
    for pod in found:
        if pod["status"].get("phase") != "Running":
            kubelet.ready(bench.kube, pod)
    if len(found) != 2 or {pod["spec"]["containers"][0]["image"] for pod in found} != {"example.org/vllm:1"}:
        return set()
    return {pod["metadata"]["uid"] for pod in found}


def _started(bench: Bench) -> int:
    """How many pods were ever made in the namespace."""
    made = [
        each
        for each in bench.cluster.requests(bench.namespace)
        if each["verb"] == "create" and each.get("objectRef", {}).get("resource") == "pods"
    ]
    return len([each for each in made if each["objectRef"]["namespace"] == bench.namespace])


def _guard(bench: Bench) -> None:
    """The chart's policy for this namespace, in which the operator has another name than by the chart."""
    values = {
        "namespaces": [bench.namespace],
        "admissionPolicy": {"enabled": True, "exemptUsers": [bench.identity.name]},
    }
    objects = helm.template(values, release=f"cachefleet-{bench.namespace[-8:]}", namespace=bench.namespace)
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        bench.kube.create(objects.of(kind)[0])
        bench.stack.callback(bench.kube.delete, kind, "", objects.of(kind)[0]["metadata"]["name"])


def _label(name: str, value: str | None) -> Object:
    return {"metadata": {"labels": {name: value}}}


def _delete_replica_sets(bench: Bench) -> None:
    for each in bench.kube.list("ReplicaSet", bench.namespace):
        bench.kube.delete("ReplicaSet", bench.namespace, each["metadata"]["name"])


def _forbidden(edit: Callable[[], object]) -> str:
    """The API server's words, "" where it took the edit."""
    try:
        edit()
    except Refused as refused:
        return refused.message if refused.status in {403, 422} else f"another refusal: {refused}"
    return ""
