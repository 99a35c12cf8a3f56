"""The operator and what pods and the control plane say: conditions, paused rollouts, scale-in by worth."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest

from cachefleet_operator.reconcile.field_conflicts import AT_ONCE, SCALER
from e2e.cluster import kubelet, rights
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import minor
from e2e.cluster.fake_control_plane import FakeControlPlane, member
from e2e.cluster.kube import APPLY, MERGE, Object, path, until

pytestmark = pytest.mark.cluster

QUICK = {"facts_seconds": 0.2, "status_seconds": 0.5, "unschedulable_seconds": 0.5, "chat_template_seconds": 0.3}


@pytest.fixture
def fleet() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as fake:
        yield fake


def pods(bench: Bench, name: str = "demo") -> list[Object]:
    """Those of a pool that stay, by name."""
    found = [
        pod
        for pod in bench.kube.list("Pod", bench.namespace)
        if pod["metadata"]["labels"].get("cachefleet.io/pool") == name and "deletionTimestamp" not in pod["metadata"]
    ]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def names(bench: Bench, name: str = "demo") -> list[str]:
    return [pod["metadata"]["name"] for pod in pods(bench, name)]


def running(bench: Bench, name: str = "demo", **spec: object) -> None:
    """A pool all of whose workers are ready."""
    bench.create(name, **spec)
    bench.settled(name)
    for pod in pods(bench, name):
        kubelet.ready(bench.kube, pod)
    until(lambda: bench.reason("Ready", name) == "WorkersReady")


def deployment(bench: Bench) -> Object:
    return bench.kube.read("Deployment", bench.namespace, "demo-workers")


def scale(bench: Bench, replicas: int, *, manager: str) -> None:
    """As kubectl and autoscalers do it, of the wrong object."""
    where = f"{path('Deployment', bench.namespace, 'demo-workers')}/scale"
    change = {"spec": {"replicas": replicas}}
    bench.kube.request("PATCH", where, change, form=MERGE, query={"fieldManager": manager})


def write_image(bench: Bench, image: str, *, manager: str) -> None:
    """Of the Deployment's engine, as a field manager that applies it by force."""
    containers = [{"name": "engine", "image": image}]
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo-workers", "namespace": bench.namespace},
        "spec": {"template": {"spec": {"containers": containers}}},
    }
    query = {"fieldManager": manager, "force": "true"}
    bench.kube.request("PATCH", path("Deployment", bench.namespace, "demo-workers"), manifest, form=APPLY, query=query)


def replica_set_of_another(bench: Bench, live: Object, *, replicas: int = 1) -> None:
    """A ReplicaSet of a Deployment with another image, as a rollout that is paused half way leaves it."""
    template = deepcopy(live["spec"]["template"])
    template["metadata"]["labels"]["pod-template-hash"] = "theirs"
    template["spec"]["containers"][0]["image"] = "example.org/theirs:2"
    labels, metadata = template["metadata"]["labels"], live["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"]}
    owners = [owner | {"controller": True, "blockOwnerDeletion": True}]
    about = {"name": "demo-workers-theirs", "namespace": bench.namespace, "labels": labels, "ownerReferences": owners}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    bench.kube.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": about, "spec": spec})


def image(bench: Bench, number: int) -> None:
    bench.edit(engine={"image": f"example.org/vllm:{number}"})


def new_pod(bench: Bench, number: int) -> Object:
    """The first pod of an image, once there is one."""
    made = until(lambda: [pod for pod in pods(bench) if pod["spec"]["containers"][0]["image"].endswith(f":{number}")])
    return made[0]


def status(bench: Bench, name: str = "demo") -> Object:
    found: Object = bench.kube.read("PrefixCachePool", bench.namespace, name).get("status", {})
    return found


def test_what_the_control_plane_knows_becomes_status(bench: Bench, fleet: FakeControlPlane, tmp_path: Path) -> None:
    key = f"{bench.namespace}/demo"
    token = tmp_path / "token"
    token.write_text("first\n")
    bench.operator(admin_url=fleet.url, admin_token_file=token, **QUICK)
    running(bench, hit={"objective": {"ratio": 0.6, "windowSeconds": 600}})
    until(lambda: bench.reason("IndexFresh") == "PoolNotKnown")
    fleet.knows(key, *map(member, names(bench)), ratio=0.714)
    until(lambda: bench.reason("HitRateMet") == "ObjectiveMet")
    found = status(bench)
    assert found["contract"] == "sha256:16"
    assert found["hitRatio"]["value"] == "0.71"
    assert (found["budget"]["usedMiB"], found["budget"]["blocks"]) == (30, 512)
    assert [each["heldBlocks"] for each in found["workers"]] == [40, 40]
    assert {each["state"] for each in found["workers"]} == {"ready"}
    assert {bench.reason(kind) for kind in ("ContractConsistent", "IndexFresh")} == {"Consistent", "ReportsFresh"}
    if bench.cluster.binaries.kubectl is not None:
        command = [*map(str, bench.cluster.kubectl()), "get", "pcp", "-n", bench.namespace, "demo", "--no-headers"]
        line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert line[:7] == ["demo", "True", "tiny", "2", "512", "0.71", "WorkersReady"]
    token.write_text("second\n")
    until(lambda: "Bearer second" in fleet.tokens)
    fleet.knows(key, *map(member, names(bench)), ratio=0.1)
    until(lambda: bench.reason("HitRateMet") == "BelowObjective")
    assert "the objective is 0.6" in bench.conditions()["HitRateMet"]["message"]
    assert "BelowObjective" in {event["reason"] for event in bench.events() if event["type"] == "Warning"}
    assert bench.reason("Ready") == "WorkersReady"


def test_whose_a_name_is_outlives_its_workers_and_is_told_to_others(bench: Bench) -> None:
    operator = bench.operator(**QUICK)
    running(bench)
    since = status(bench)["firstReadyTime"]
    assert bench.reason("ModelNameConflict") == "NameOwned"
    bench.edit(replicas=0)
    until(lambda: bench.reason("WorkersAvailable") == "NoWorkersWanted")
    assert status(bench)["firstReadyTime"] == since
    operator.stop()
    bench.operator(model_names='{"tiny": ["elsewhere"]}', **QUICK)
    until(lambda: bench.reason("ModelNameConflict") == "NameNotAllowed")
    until(lambda: "NameNotAllowed" in {event["reason"] for event in bench.events() if event["type"] == "Warning"})
    assert status(bench)["firstReadyTime"] == since


def test_figures_that_move_all_the_time_are_written_seldom(bench: Bench, fleet: FakeControlPlane) -> None:
    key = f"{bench.namespace}/demo"
    bench.operator(admin_url=fleet.url, **QUICK | {"status_seconds": 3600, "facts_seconds": 0.1})
    running(bench)
    fleet.knows(key, *map(member, names(bench)), ratio=0.5)
    until(lambda: bench.reason("IndexFresh") == "ReportsFresh")
    before = bench.writes()
    fleet.knows(key, *(member(name, heldBlocks=77) for name in names(bench)), ratio=0.9)
    asked = len(fleet.asked)
    until(lambda: len(fleet.asked) > asked + 10)
    assert bench.writes() == before
    fleet.knows(key, *(member(name, heldBlocks=77, epoch="new") for name in names(bench)), ratio=0.9)
    until(lambda: {each.get("heldBlocks") for each in status(bench)["workers"]} == {77})
    assert status(bench)["hitRatio"]["value"] == "0.90"


def test_without_an_answer_pools_are_kept_true_all_the_same(bench: Bench, fleet: FakeControlPlane) -> None:
    fleet.failing = True
    operator = bench.operator(admin_url=fleet.url, facts_keep_seconds=0.5, **QUICK)
    running(bench)
    until(lambda: bench.reason("ContractConsistent") == "ControlPlaneUnreachable")
    until(lambda: operator.metric('cachefleet_operator_facts_failures_total{reason="503"}') >= 1)
    fleet.failing = False
    fleet.knows(f"{bench.namespace}/demo", *map(member, names(bench)), ratio=0.5)
    until(lambda: bench.reason("ContractConsistent") == "Consistent")
    fleet.failing = True
    until(lambda: bench.reason("ContractConsistent") == "ControlPlaneUnreachable")
    assert status(bench)["hitRatio"]["value"] == "0.50"
    bench.edit(replicas=1)
    until(lambda: len(pods(bench)) == 1)


def test_a_worker_of_another_contract_is_told_of_with_both_values(bench: Bench, fleet: FakeControlPlane) -> None:
    bench.operator(admin_url=fleet.url, **QUICK)
    running(bench)
    first, second = names(bench)
    stranger = member(second, excluded=True, differences=[{"field": "tokenizer", "expected": "abc", "actual": "xyz"}])
    fleet.knows(f"{bench.namespace}/demo", member(first), stranger)
    until(lambda: bench.reason("ContractConsistent") == "ContractMismatch")
    message = bench.conditions()["ContractConsistent"]["message"]
    assert all(word in message for word in (second, "tokenizer", "abc", "xyz"))
    assert bench.reason("Degraded") == "ContractMismatch"


def test_pools_of_a_fleet_that_differ_are_both_told_and_others_are_not(bench: Bench) -> None:
    bench.operator(**QUICK)
    bench.create("first")
    bench.create("other", model={"name": "another"})
    bench.settled("first")
    bench.create("second", engine={"blockSize": 32})
    until(lambda: bench.reason("ContractConsistent", "first") == "PoolsDiffer")
    until(lambda: bench.reason("ContractConsistent", "second") == "PoolsDiffer")
    words = bench.conditions("first")["ContractConsistent"]["message"]
    assert all(word in words for word in ("second", "engine.blockSize", "32", "16"))
    assert "PoolsDiffer" in {event["reason"] for event in bench.events("second")}
    assert bench.reason("ContractConsistent", "other") == "NoControlPlane"
    bench.kube.delete("PrefixCachePool", bench.namespace, "second")
    until(lambda: bench.reason("ContractConsistent", "first") == "NoControlPlane")


def test_an_impossible_image_is_told_of_once_and_harms_nobody(bench: Bench) -> None:
    bench.operator(**QUICK)
    bench.create("other")
    bench.create()
    bench.settled()
    for pod in pods(bench):
        kubelet.waiting(bench.kube, pod, "ErrImagePull", "example.org/vllm:1: not found")
    until(lambda: bench.reason("WorkersAvailable") == "ImageUnavailable")
    condition = bench.conditions()["WorkersAvailable"]
    assert all(word in condition["message"] for word in (names(bench)[0], "engine", "example.org/vllm:1: not found"))
    assert {bench.reason(kind) for kind in ("Ready", "Progressing", "Degraded")} == {"ImageUnavailable"}
    for pod in pods(bench):
        kubelet.waiting(bench.kube, pod, "ImagePullBackOff", "Back-off pulling image")
    until(lambda: "Back-off" in bench.conditions()["Degraded"]["message"])
    assert [event["reason"] for event in bench.events()].count("ImageUnavailable") == 1
    assert bench.reason("Degraded", "other") == "NothingWrong"
    for pod in pods(bench):
        kubelet.ready(bench.kube, pod)
    until(lambda: bench.reason("Degraded") == "NothingWrong")


def test_a_pod_that_no_node_takes_is_told_of(bench: Bench) -> None:
    bench.operator(**QUICK)
    bench.create()
    bench.settled()
    kubelet.unschedulable(bench.kube, pods(bench)[0], "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    until(lambda: bench.reason("WorkersAvailable") == "Unschedulable")
    assert "3 Insufficient nvidia.com/gpu" in bench.conditions()["WorkersAvailable"]["message"]


def test_a_rollout_whose_volume_only_one_node_may_mount_says_so_and_ends_by_the_advice(bench: Bench) -> None:
    words = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) demo-workers-a'
    bench.operator(**QUICK)
    running(bench)
    image(bench, 2)
    kubelet.without_volume(bench.kube, new_pod(bench, 2), "FailedAttachVolume", words)
    until(lambda: bench.reason("Progressing") == "VolumeUnavailable")
    said = bench.conditions()["Progressing"]["message"]
    assert f"FailedAttachVolume: {words}" in said
    assert "rollout.maxSurge: 0, maxUnavailable: 1" in said
    assert "maxSurge: 0" in bench.conditions()["Degraded"]["message"]
    assert bench.conditions()["WorkersAvailable"]["status"] == "True", "the old worker serves"
    assert "VolumeUnavailable" in {event["reason"] for event in bench.events()}
    bench.edit(rollout={"maxSurge": 0, "maxUnavailable": 1})
    until(lambda: deployment(bench)["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0)
    until(lambda: len(pods(bench)) == 2)  # an old one has gone, and with it what it held
    kubelet.ready(bench.kube, new_pod(bench, 2))
    until(partial(_rolled, bench, 2))


def test_a_rollout_whose_new_workers_fail_stands_still_until_the_pool_changes(bench: Bench) -> None:
    bench.operator(**QUICK)
    running(bench)
    image(bench, 2)
    kubelet.waiting(bench.kube, new_pod(bench, 2), "CrashLoopBackOff", "back-off 40s", restarts=3)
    until(lambda: deployment(bench)["spec"].get("paused"))
    until(lambda: bench.reason("Progressing") == "RolloutPaused")
    assert bench.conditions()["Degraded"]["status"] == "True"
    assert bench.conditions()["WorkersAvailable"]["status"] == "True"
    assert "RolloutPaused" in {event["reason"] for event in bench.events()}
    bench.edit(hit={"threshold": 0.25})
    until(lambda: bench.reason("Progressing") == "RolloutPaused")
    assert deployment(bench)["spec"]["paused"]
    image(bench, 1)
    until(lambda: not deployment(bench)["spec"].get("paused"))
    until(lambda: bench.reason("Ready") == "WorkersReady")
    until(lambda: bench.reason("Degraded") == "NothingWrong")


def test_a_paused_rollout_goes_on_when_its_workers_are_well(bench: Bench) -> None:
    bench.operator(**QUICK)
    running(bench)
    image(bench, 2)
    kubelet.waiting(bench.kube, new_pod(bench, 2), "ImagePullBackOff", "Back-off pulling image")
    until(lambda: bench.reason("Progressing") == "RolloutPaused")
    kubelet.ready(bench.kube, new_pod(bench, 2))
    until(lambda: not deployment(bench)["spec"].get("paused"))
    until(partial(_rolled, bench, 2))


def test_a_first_rollout_is_never_paused(bench: Bench) -> None:
    bench.operator(**QUICK)
    bench.create()
    bench.settled()
    for pod in pods(bench):
        kubelet.waiting(bench.kube, pod, "CrashLoopBackOff", "back-off 40s", restarts=5)
    until(lambda: bench.reason("Degraded") == "CrashLooping")
    assert not deployment(bench)["spec"].get("paused")
    assert "last: Error, exit code 1: boom" in bench.conditions()["Degraded"]["message"]


def test_the_worker_whose_cache_is_worth_least_goes_first(bench: Bench, fleet: FakeControlPlane) -> None:
    bench.operator(admin_url=fleet.url, **QUICK)
    running(bench, replicas=4)
    first, second, third, fourth = names(bench)
    worth = {first: 7.0, second: 0.5, third: 9.0, fourth: 0.25}
    fleet.knows(f"{bench.namespace}/demo", *(member(name, value=value) for name, value in worth.items()))
    until(lambda: bench.reason("IndexFresh") == "ReportsFresh")
    assert not any(write.startswith("patch pods") for write in bench.writes())
    bench.edit(replicas=2)
    until(lambda: names(bench) == sorted([first, third]))
    written = [write for write in bench.writes() if write.startswith(("patch pods", "patch deployments"))]
    assert written[-5:] == [*written[-5:-1], "patch deployments/demo-workers"]
    assert all(write.startswith("patch pods/") for write in written[-5:-1])


def test_without_facts_fewer_workers_are_fewer_workers(bench: Bench) -> None:
    bench.operator(**QUICK)
    running(bench, replicas=3)
    bench.edit(replicas=1)
    until(lambda: len(pods(bench)) == 1)
    assert not any(write.startswith("patch pods") for write in bench.writes())


def test_another_chat_template_is_another_pod_and_a_missing_one_touches_nothing(bench: Bench) -> None:
    text = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "t", "namespace": bench.namespace}}
    bench.kube.create(text | {"data": {"k": "one"}})
    bench.operator(**QUICK)
    bench.create(model={"chatTemplate": {"configMapKeyRef": {"name": "t", "key": "k"}}})
    bench.settled()
    before = deployment(bench)["metadata"]["generation"]
    bench.kube.delete("ConfigMap", bench.namespace, "t")
    until(lambda: bench.reason("ConfigValid") == "ChatTemplateMissing")
    assert "ConfigMap t is not there" in bench.conditions()["ConfigValid"]["message"]
    assert deployment(bench)["metadata"]["generation"] == before
    bench.kube.create(text | {"data": {"k": "two"}})
    until(lambda: bench.reason("ConfigValid") == "Valid")
    assert deployment(bench)["metadata"]["generation"] > before


@pytest.mark.skipif(minor() < 34, reason="devices, for which some of the rights are, can be claimed from 1.34 on")
def test_rights_granted_are_rights_used(bench: Bench, fleet: FakeControlPlane) -> None:
    first = bench.operator(admin_url=fleet.url, tls="issued", **QUICK)
    running(bench, rollout={"maxUnavailable": 1, "maxSurge": 1})
    image(bench, 2)
    kubelet.without_volume(bench.kube, new_pod(bench, 2), "FailedMount", "MountVolume.SetUp failed")  # events say so
    until(lambda: bench.reason("Progressing") == "VolumeUnavailable")
    image(bench, 1)
    until(lambda: len(pods(bench)) == 2)
    fleet.knows(f"{bench.namespace}/demo", *map(member, names(bench)))
    bench.kube.patch("Secret", bench.namespace, "demo-worker-tls", {"data": {"ca.crt": ""}})  # it is written again
    bench.edit(replicas=1)
    until(lambda: len(pods(bench)) == 1)
    until(lambda: bench.kube.read("Secret", bench.namespace, "demo-worker-tls")["data"]["ca.crt"])
    for _ in range(AT_ONCE):  # as an autoscaler does it
        until(lambda: deployment(bench)["spec"]["replicas"] == 1)
        scale(bench, 2, manager=SCALER)
    until(lambda: bench.reason("Degraded") == "FieldConflict")
    for _ in range(AT_ONCE):  # as a field manager that has another template
        until(lambda: deployment(bench)["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":1"))
        write_image(bench, "example.org/theirs:1", manager="argocd-controller")
    until(lambda: deployment(bench)["spec"].get("paused"))
    for pod in pods(bench):  # else the Deployment's controller would itself end what is beside a ready ReplicaSet
        kubelet.waiting(bench.kube, pod, "ContainerCreating", "")
    until(lambda: not deployment(bench)["status"].get("availableReplicas"))
    replica_set_of_another(bench, deployment(bench))
    until(lambda: not bench.kube.read("ReplicaSet", bench.namespace, "demo-workers-theirs")["spec"]["replicas"])
    _claim_twice(bench)
    first.stop()
    assert rights.used(bench.cluster.requests(bench.identity.name), bench.identity) == rights.RIGHTS


def _claim_twice(bench: Bench) -> None:
    """A pool whose devices are claimed, edited, so that the template of its former claims goes."""
    bench.create("claims", device={"claims": {"className": "gpu"}}, replicas=1)
    for count in (2, 1):
        until(lambda: bench.reason("Progressing", "claims") == "DevicesUnavailable")
        for pod in pods(bench, "claims"):
            kubelet.ready(bench.kube, pod)
        until(lambda: bench.reason("Ready", "claims") == "WorkersReady")
        bench.edit("claims", device={"claims": {"count": count}})
    until(lambda: len(bench.kube.list("ResourceClaimTemplate", bench.namespace)) == 2)
    for name in ("className", "resourceClaimTemplateName"):
        bench.create(name.lower(), device={"claims": {name: "gpu"}, "memoryMiB": None})
        until(lambda name=name: bench.reason("BudgetAdmitted", name.lower()) == "DeviceMemoryUnknown")  # type: ignore[misc]


def test_metrics_tell_of_each_pool_and_forget_it(bench: Bench) -> None:
    operator = bench.operator(**QUICK)
    bench.create()
    bench.settled()
    sample = f'cachefleet_operator_pool_condition{{namespace="{bench.namespace}",pool="demo",type="%s"}}'
    until(lambda: operator.metric(sample % "ConfigValid") == 1)
    until(lambda: operator.metric(sample % "IndexFresh") == -1)
    assert operator.metric("cachefleet_operator_watch_age_seconds") < 60
    bench.kube.delete("PrefixCachePool", bench.namespace, "demo")
    until(lambda: sample % "ConfigValid" not in operator.probe("/metrics")[1])


def _rolled(bench: Bench, number: int) -> bool:
    """Play the kubelet until all pods are of an image."""
    for pod in pods(bench):
        if pod["status"].get("phase") != "Running":
            kubelet.ready(bench.kube, pod)
    images = {pod["spec"]["containers"][0]["image"] for pod in pods(bench)}
    assert images == {f"example.org/vllm:{number}"}
    return len(pods(bench)) == 2
