"""Others that write what belongs to a pool, before a real API server and its controllers: told, bounded, prevented."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from cachefleet_operator.reconcile.field_conflicts import AT_ONCE
from e2e.cluster import kubelet
from e2e.cluster.bench import Bench
from e2e.cluster.kube import MERGE, Object, Refused, path, until
from e2e.cluster.test_operator_lifecycle import pods, replica_set_of_another, running, scale, write_image
from tests.chart import helm

pytestmark = pytest.mark.cluster

GUARDED = "belongs to a PrefixCachePool"
FIGHT_SECONDS = 6.0
"""How long the other one writes on, at least: without an end to it, some pods a second are started and ended."""
LONGEST_SECONDS = 120.0
"""A busy machine may take so long until the conflict is told."""


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


@pytest.mark.parametrize(("rollout", "ended"), [({}, 0), ({"maxUnavailable": 1}, 1)])
def test_a_field_manager_that_fights_for_the_pods_replaces_none(bench: Bench, rollout: Object, ended: int) -> None:
    """Once it is known; what its first edits started is ended, and what they ended is started again."""
    bench.operator()
    running(bench, rollout=rollout)
    serving = _uids(bench)
    _write_over(bench)
    kept = until(lambda: _all_ready(bench))
    assert len(serving - kept) <= ended
    _fight(bench, lambda _: _image(bench) == "example.org/vllm:1", partial(_write_image, bench))
    condition = until(lambda: _conflict(bench))
    assert "argocd-controller changes spec.template.spec.containers[engine].image" in condition["message"]
    assert _uids(bench) == kept
    bench.edit(engine={"image": "example.org/vllm:2"})
    until(lambda: "example.org/vllm:2" in {pod["spec"]["containers"][0]["image"] for pod in pods(bench)})


def test_a_pause_leaves_no_pods_of_another_template_and_all_of_the_pool_s_own(bench: Bench) -> None:
    """However many of either the pause met. The Deployment's controller alone keeps such a mixture as it is."""
    bench.operator()
    running(bench)
    _write_over(bench)
    kept = until(lambda: _all_ready(bench))
    own = next(each for each in bench.kube.list("ReplicaSet", bench.namespace) if each["spec"]["replicas"])
    replica_set_of_another(bench, bench.kube.read("Deployment", bench.namespace, "demo-workers"), replicas=2)
    bench.kube.patch("ReplicaSet", bench.namespace, own["metadata"]["name"], {"spec": {"replicas": 1}})
    until(lambda: len(kept & _uids(bench)) == 1)
    until(lambda: _all_ready(bench))
    assert bench.kube.read("Deployment", bench.namespace, "demo-workers")["spec"]["paused"]


def test_the_admission_policy_lets_nobody_else_write(bench: Bench) -> None:
    """Of a pool; what belongs to none is everybody's."""
    _guard(bench)
    bench.operator()
    running(bench)
    # The policy is in force a moment after it was made; what is tried until then changes nothing.
    until(lambda: GUARDED in _forbidden(partial(_would_scale, bench)))
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
        assert GUARDED in _forbidden(edit)
    assert GUARDED in _forbidden(partial(_delete_replica_sets, bench))
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
    """Write again whenever it was undone, until that is told and for some time."""
    began = time.monotonic()
    while (took := time.monotonic() - began) < FIGHT_SECONDS or (took < LONGEST_SECONDS and not _conflict(bench)):
        if undone(bench.kube.read("Deployment", bench.namespace, "demo-workers")):
            write()
        time.sleep(0.05)


def _write_over(bench: Bench) -> None:
    """Change the pods' template as somebody who errs and is told so by nobody yet, until it is taken for a conflict."""
    for _ in range(AT_ONCE):
        _write_image(bench)
        until(lambda: _image(bench) == "example.org/vllm:1")
    until(lambda: bench.kube.read("Deployment", bench.namespace, "demo-workers")["spec"].get("paused"))


def _write_image(bench: Bench) -> None:
    write_image(bench, "example.org/theirs:1", manager="argocd-controller")


def _uids(bench: Bench) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(bench)}


def _conflict(bench: Bench) -> Object | None:
    found = bench.condition("Degraded")
    return found if found and found["reason"] == "FieldConflict" else None


def _image(bench: Bench) -> str:
    live = bench.kube.read("Deployment", bench.namespace, "demo-workers")
    return str(live["spec"]["template"]["spec"]["containers"][0]["image"])


def _all_ready(bench: Bench) -> set[str]:
    """The pods once there are two, both of the pool's own image and played ready, and no controller is to change that;
    before that none.
    """
    there = pods(bench)
    own = [pod for pod in there if pod["spec"]["containers"][0]["image"] == "example.org/vllm:1"]
    for pod in own:
        if pod["status"].get("phase") != "Running":
            kubelet.ready(bench.kube, pod)
    return {pod["metadata"]["uid"] for pod in own} if len(there) == len(own) == 2 and _at_rest(bench) else set()


def _at_rest(bench: Bench) -> bool:
    """Whether controllers have carried out what they have been asked for."""
    sets = bench.kube.list("ReplicaSet", bench.namespace)
    seen = [
        each["status"].get("observedGeneration") == each["metadata"]["generation"]
        for each in (bench.kube.read("Deployment", bench.namespace, "demo-workers"), *sets)
    ]
    return all(seen) and all(each["status"]["replicas"] == each["spec"]["replicas"] for each in sets)


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


def _would_scale(bench: Bench) -> None:
    where = f"{path('Deployment', bench.namespace, 'demo-workers')}/scale"
    bench.kube.request("PATCH", where, {"spec": {"replicas": 0}}, form=MERGE, query={"dryRun": "All"})


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
