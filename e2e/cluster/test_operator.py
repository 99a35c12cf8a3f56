"""The operator against a real API server and real controllers: what a pool becomes, and what it says about itself."""

from __future__ import annotations

import base64
import json
import subprocess
from functools import partial
from typing import Any

import pytest

from cachefleet_core.pool.admitted import in_force
from cachefleet_core.tenancy import FleetKey
from e2e.cluster.bench import CHILDREN, Bench
from e2e.cluster.kube import Kube, Refused, path, until
from tests.core.invalid_pools import INVALID, VALID, Invalid, merged

pytestmark = pytest.mark.cluster


def test_a_pool_becomes_workers(bench: Bench) -> None:
    bench.operator()
    bench.create()
    pool = bench.settled()
    assert pool["status"]["selector"] == "cachefleet.io/pool=demo"
    assert pool["status"]["budget"] == {"requestedMiB": 512, "kvCacheMiB": 4544, "admittedMiB": 512}
    for kind in CHILDREN:
        child = bench.child(kind)
        assert child is not None
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [pool["metadata"]["uid"]]
    pods = bench.kube.list("Pod", bench.namespace)
    assert len(pods) == 2
    assert all(pod["spec"]["initContainers"][1]["restartPolicy"] == "Always" for pod in pods)
    conditions = bench.conditions()
    assert {name: each["status"] for name, each in conditions.items()} == {
        "ConfigValid": "True",
        "BudgetAdmitted": "True",
        "WorkersAvailable": "False",
        "ContractConsistent": "Unknown",
        "EngineAsAsked": "Unknown",
        "IndexFresh": "Unknown",
        "IndexBlind": "Unknown",
        "HitRateMet": "Unknown",
        "KeysBroken": "False",
        "ModelNameConflict": "False",
        "Progressing": "True",
        "Stalled": "False",
        "Degraded": "False",
        "Ready": "False",
    }
    assert conditions["WorkersAvailable"]["message"] == "0 of 2 workers ready"
    assert [event["reason"] for event in bench.events()] == ["RollingOut"]


def test_workers_keep_to_the_restricted_profile(bench: Bench) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    bench.kube.patch("Namespace", "", bench.namespace, {"metadata": {"labels": labels}})
    text = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "{{ messages }}"}}
    bench.kube.create({**text, "metadata": {"name": "t", "namespace": bench.namespace}})
    bench.operator()
    bench.create(model={"chatTemplate": {"configMapKeyRef": {"name": "t", "key": "k"}}})
    bench.settled()
    assert len(bench.kube.list("Pod", bench.namespace)) == 2


def test_a_policy_edit_moves_no_pod_and_an_image_does(bench: Bench) -> None:
    bench.operator()
    bench.create()
    bench.settled()
    before = _deployment(bench)
    bench.edit(hit={"threshold": 0.5}, preemption={"policy": "Recompute"})
    until(lambda: _policy(bench)["threshold"] == 0.5)
    bench.settled()
    assert _deployment(bench)["metadata"]["generation"] == before["metadata"]["generation"]
    assert _policy(bench)["generation"] == 2
    bench.edit(engine={"image": "example.org/vllm:2"})
    until(lambda: _deployment(bench)["metadata"]["generation"] > before["metadata"]["generation"])
    assert _deployment(bench)["spec"]["template"]["spec"]["containers"][0]["image"] == "example.org/vllm:2"


def test_a_field_taken_out_of_the_pool_leaves_the_pod(bench: Bench) -> None:
    bench.operator()
    bench.create(engine={"env": [{"name": "EXTRA", "value": "1"}]}, podTemplate={"spec": {"nodeSelector": {"a": "b"}}})
    bench.settled()
    assert "EXTRA" in _variables(bench)
    bench.edit(engine={"env": []}, podTemplate={"spec": None})
    until(lambda: "EXTRA" not in _variables(bench))
    assert "nodeSelector" not in _deployment(bench)["spec"]["template"]["spec"]


def test_scales_through_its_subresource_and_leaves_a_scaler_alone(bench: Bench) -> None:
    bench.operator()
    manifest = bench.pool()
    del manifest["spec"]["replicas"]
    bench.kube.apply(manifest, manager="tester")
    assert bench.settled()["spec"]["replicas"] == 1
    bench.kube.patch("PrefixCachePool", bench.namespace, "demo", {"spec": {"replicas": 3}}, subresource="scale")
    until(lambda: _deployment(bench)["spec"]["replicas"] == 3)
    scale = bench.kube.request("GET", path("PrefixCachePool", bench.namespace, "demo") + "/scale")
    assert scale["status"]["selector"] == "cachefleet.io/pool=demo"
    until(lambda: len(bench.kube.list("Pod", bench.namespace)) == 3)
    manifest["spec"]["hit"] = {"threshold": 0.25}
    bench.kube.apply(manifest, manager="tester")
    until(lambda: _policy(bench)["threshold"] == 0.25)
    assert _deployment(bench)["spec"]["replicas"] == 3
    bench.kube.patch("PrefixCachePool", bench.namespace, "demo", {"spec": {"replicas": 0}}, subresource="scale")
    until(lambda: bench.reason("Ready") == "NoWorkersWanted")


def test_a_budget_that_does_not_fit_starts_nothing_and_says_both_numbers(bench: Bench) -> None:
    bench.operator(resync_seconds=1)
    bench.create(prefixCache={"budgetMiB": 9999})
    condition = until(lambda: bench.condition("BudgetAdmitted"))
    assert condition["status"] == "False"
    assert condition["reason"] == "BudgetExceedsKVCache"
    assert "9999" in condition["message"]
    assert "4544" in condition["message"]
    (event,) = bench.events()
    assert (event["type"], event["message"]) == ("Warning", condition["message"])
    assert all(bench.child(kind) is None for kind in CHILDREN)
    before = len(bench.writes())
    bench.edit(prefixCache={"budgetMiB": 100})
    bench.settled()
    assert [event["reason"] for event in bench.events() if event["type"] == "Warning"] == ["BudgetExceedsKVCache"]
    assert len(bench.writes()) > before


def test_a_bad_edit_leaves_running_workers_as_they_are(bench: Bench) -> None:
    bench.operator()
    bench.create()
    bench.settled()
    before = _deployment(bench)
    bench.edit(prefixCache={"budgetMiB": 9999}, engine={"image": "example.org/vllm:2"}, hit={"threshold": 0.9})
    until(lambda: bench.reason("Ready") == "BudgetExceedsKVCache")
    assert _deployment(bench)["metadata"]["generation"] == before["metadata"]["generation"]
    pool = bench.kube.read("PrefixCachePool", bench.namespace, "demo")
    assert pool["status"]["budget"]["admittedMiB"] == 512
    followed = in_force(pool)
    assert followed.admitted
    assert (followed.pool.metadata.generation, followed.pool.spec.hit.threshold) == (1, 0)
    assert (_policy(bench)["generation"], _policy(bench)["budget_mib"]) == (1, 512)
    bench.kube.delete("ConfigMap", bench.namespace, "demo-policy")
    until(lambda: bench.child("ConfigMap") is not None)
    assert (_policy(bench)["generation"], _policy(bench)["budget_mib"]) == (1, 512)


@pytest.mark.parametrize(
    ("template", "reason", "message"),
    [
        ({"nodeSelector": {}}, "InvalidPodTemplate", "spec.podTemplate.nodeSelector: is not a known field"),
        ({"spec": {"nodeSelektor": {"a": "b"}}}, "Refused", "nodeSelektor"),
        ({"spec": {"containers": [{"name": "engine", "image": None}]}}, "Refused", "image: Required value"),
    ],
)
def test_what_slips_past_becomes_a_condition_and_can_be_repaired(
    bench: Bench, template: dict[str, Any], reason: str, message: str
) -> None:
    bench.operator()
    bench.create("other")
    bench.create(podTemplate=template)
    condition = until(lambda: bench.condition("ConfigValid"))
    assert condition["reason"] == reason
    assert message in condition["message"]
    bench.settled("other")
    assert len(bench.events()) == 1
    bench.kube.patch("PrefixCachePool", bench.namespace, "demo", {"spec": {"podTemplate": None}})
    bench.settled()
    assert bench.conditions()["ConfigValid"]["status"] == "True"


def test_what_only_the_operator_finds_wrong_becomes_a_condition(bench: Bench) -> None:
    bench.operator()
    slipped = [case for case in INVALID if not case.server and _accepted(bench.kube, case, bench.namespace)]
    names = [f"slipped-{number}" for number, _ in enumerate(slipped)]
    for name, case in zip(names, slipped, strict=True):
        manifest = merged(VALID, case.patch)
        manifest["metadata"] |= {"name": name, "namespace": bench.namespace}
        bench.kube.create(manifest)
    for name in names:
        condition = until(partial(bench.condition, "ConfigValid", name))
        assert (condition["status"], condition["reason"]) == ("False", "Invalid")


def test_pods_that_are_refused_are_told_of_and_others_unharmed(bench: Bench) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    bench.kube.patch("Namespace", "", bench.namespace, {"metadata": {"labels": labels}})
    bench.operator()
    bench.create(podTemplate={"spec": {"hostNetwork": True}})
    until(lambda: bench.reason("WorkersAvailable") == "PodsRefused")
    assert "PodSecurity" in bench.conditions()["Ready"]["message"]
    assert "PodsRefused" in {event["reason"] for event in bench.events() if event["type"] == "Warning"}
    bench.create("other")
    bench.settled("other")


def test_deleting_a_pool_leaves_nothing(bench: Bench) -> None:
    bench.operator()
    bench.create()
    bench.settled()
    assert "finalizers" not in bench.kube.read("PrefixCachePool", bench.namespace, "demo")["metadata"]
    bench.kube.delete("PrefixCachePool", bench.namespace, "demo")
    until(lambda: all(bench.child(kind) is None for kind in CHILDREN) and not bench.kube.list("Pod", bench.namespace))
    bench.create()
    bench.settled()


def test_deleting_a_pool_without_an_operator_leaves_nothing(bench: Bench) -> None:
    operator = bench.operator()
    bench.create()
    bench.settled()
    assert operator.stop() == 0
    bench.kube.delete("PrefixCachePool", bench.namespace, "demo", policy="Foreground")
    until(lambda: bench.kube.get("PrefixCachePool", bench.namespace, "demo") is None)
    assert all(bench.child(kind) is None for kind in CHILDREN)


def test_a_second_look_writes_nothing(bench: Bench) -> None:
    odd = {
        "spec": {"containers": [{"name": "engine", "resources": {"requests": {"memory": "1024Mi", "cpu": "1000m"}}}]}
    }
    first = bench.operator()
    bench.create(podTemplate=odd)
    bench.create("cpu", device={"resource": ""})
    bench.create("broken", podTemplate={"nonsense": 1})
    bench.settled()
    bench.settled("cpu")
    until(lambda: bench.conditions("broken"))
    assert first.stop() == 0
    before = bench.writes()
    second = bench.operator(resync_seconds=1)
    done = 'cachefleet_operator_reconciles_total{outcome="done"}'
    until(lambda: second.metric(done) >= 3)
    looked = second.metric(done)
    until(lambda: second.metric(done) >= looked + 3)
    assert bench.writes()[len(before) :] == []


def test_what_others_change_is_put_right(bench: Bench) -> None:
    bench.operator()
    bench.create()
    bench.settled()
    wanted = bench.essence()
    bench.kube.delete("Service", bench.namespace, "demo-workers")
    bench.kube.delete("ConfigMap", bench.namespace, "demo-policy")
    bench.kube.delete("ServiceAccount", bench.namespace, "demo-worker")
    bench.kube.patch(
        "Deployment", bench.namespace, "demo-workers", {"spec": {"replicas": 5, "progressDeadlineSeconds": 9}}
    )
    until(lambda: bench.essence()["Deployment"]["spec"] == wanted["Deployment"]["spec"])
    until(lambda: all(bench.child(kind) for kind in CHILDREN))


def test_pods_that_only_have_the_label_are_told(bench: Bench) -> None:
    bench.operator()
    bench.create()
    bench.settled()
    for name in ("bare", "demo-workers-1-aaaaa"):
        metadata = {"name": name, "namespace": bench.namespace, "labels": {"cachefleet.io/pool": "demo"}}
        spec = {"containers": [{"name": "c", "image": "x"}]}
        bench.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    until(lambda: _foreign(bench) == ["bare", "demo-workers-1-aaaaa"])
    assert bench.reason("Degraded") == "ForeignPods"
    assert ": bare, demo-workers-1-aaaaa;" in bench.conditions()["Degraded"]["message"]
    for name in ("bare", "demo-workers-1-aaaaa"):
        bench.kube.delete("Pod", bench.namespace, name)
    until(lambda: _foreign(bench) == [] and bench.reason("Degraded") == "NothingWrong")


def test_keys_are_made_once_and_the_same_again(bench: Bench) -> None:
    bench.operator(resync_seconds=1)
    bench.create()
    bench.settled()
    first = bench.kube.read("Secret", bench.namespace, "demo-worker-keys")["data"]
    bench.kube.delete("Secret", bench.namespace, "demo-worker-keys")
    assert until(lambda: bench.child("Secret"))["data"] == first


def test_changed_keys_are_put_right_and_pods_that_may_hold_others_are_replaced(bench: Bench) -> None:
    bench.operator(resync_seconds=1)
    bench.create()
    bench.settled()
    first, mark = bench.kube.read("Secret", bench.namespace, "demo-worker-keys")["data"], _mark(bench)
    other = {"worker.key": base64.b64encode(b"mine").decode()}
    bench.kube.patch("Secret", bench.namespace, "demo-worker-keys", {"data": other})
    until(lambda: bench.kube.read("Secret", bench.namespace, "demo-worker-keys")["data"] == first)
    until(lambda: _mark(bench) == f"{mark}-1")  # no pod of this cluster ever runs: it may read the keys at any time
    bench.settled()
    bench.kube.patch("Secret", bench.namespace, "demo-worker-keys", {"data": other})
    until(lambda: bench.reason("KeysBroken") == "KeysRewritten")
    assert bench.kube.read("Secret", bench.namespace, "demo-worker-keys")["data"]["worker.key"] == other["worker.key"]


def test_another_fleet_key_is_told_until_the_pools_take_it(bench: Bench) -> None:
    bench.operator(resync_seconds=1, chat_template_seconds=0.5)
    bench.create()
    bench.settled()
    first, mark = bench.kube.read("Secret", bench.namespace, "demo-worker-keys")["data"], _mark(bench)
    fleet = {"fleet.key": base64.b64encode(FleetKey.generate().format().encode()).decode()}
    bench.kube.patch("Secret", bench.namespace, "cachefleet-fleet-key", {"data": fleet})
    until(lambda: bench.reason("KeysBroken") == "FleetKeyChanged")
    assert bench.reason("Ready") == "FleetKeyChanged"
    assert (bench.kube.read("Secret", bench.namespace, "demo-worker-keys")["data"], _mark(bench)) == (first, mark)
    bench.kube.delete("Secret", bench.namespace, "demo-worker-keys")
    assert until(lambda: bench.child("Secret"))["data"] != first
    until(lambda: _mark(bench) != mark)
    until(lambda: bench.reason("KeysBroken") == "KeysHeld")


def _mark(bench: Bench) -> str:
    template = bench.kube.read("Deployment", bench.namespace, "demo-workers")["spec"]["template"]
    return str(template["metadata"]["annotations"]["cachefleet.io/keys"])


def test_somebody_elses_object_is_not_taken(bench: Bench) -> None:
    theirs = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 1}], "selector": {"app": "theirs"}}}
    bench.kube.create({**theirs, "metadata": {"name": "demo-workers", "namespace": bench.namespace}})
    bench.operator()
    bench.create()
    condition = until(lambda: bench.condition("ConfigValid"))
    assert (condition["reason"], condition["status"]) == ("NameTaken", "False")
    assert bench.kube.read("Service", bench.namespace, "demo-workers")["spec"]["selector"] == {"app": "theirs"}
    bench.kube.delete("Service", bench.namespace, "demo-workers")
    until(lambda: bench.child("Deployment"))


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case.name)
def test_the_server_refuses(kube: Kube, case: Invalid) -> None:
    if not case.server:
        pytest.skip("no refusal expected from the server")
    with pytest.raises(Refused) as refused:
        kube.create(merged(VALID, case.patch), dry_run=True)
    # The API server of Kubernetes 1.31 shows a value by the name of its type in Go.
    assert case.server in refused.value.message.replace("map[string]interface {}", "")


def test_people_read_what_the_fields_mean(bench: Bench) -> None:
    if bench.cluster.binaries.kubectl is None:
        pytest.skip("KUBEBUILDER_ASSETS has no kubectl")
    command = [*map(str, bench.cluster.kubectl()), "explain", "prefixcachepools.spec.prefixCache"]
    text = until(lambda: subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    assert "budgetMiB" in text
    assert "idle cached blocks" in text


def _accepted(kube: Kube, case: Invalid, namespace: str) -> bool:
    manifest = merged(VALID, case.patch)
    if not isinstance(manifest.get("metadata"), dict) or manifest.get("kind") != "PrefixCachePool":
        return False
    manifest["metadata"]["namespace"] = namespace
    try:
        kube.create(manifest, dry_run=True)
    except Refused:
        return False
    return True


def _deployment(bench: Bench) -> dict[str, Any]:
    return bench.kube.read("Deployment", bench.namespace, "demo-workers")


def _foreign(bench: Bench) -> list[str]:
    status = bench.kube.read("PrefixCachePool", bench.namespace, "demo").get("status", {})
    found: list[str] = status.get("foreignPods", [])
    return found


def _policy(bench: Bench) -> dict[str, Any]:
    text = bench.kube.read("ConfigMap", bench.namespace, "demo-policy")["data"]["policy.json"]
    policy: dict[str, Any] = json.loads(text)
    return policy


def _variables(bench: Bench) -> set[str]:
    containers = _deployment(bench)["spec"]["template"]["spec"]["containers"]
    return {variable["name"] for variable in containers[0]["env"]}
