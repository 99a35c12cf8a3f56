"""Where workers go: devices of several makers, pools that share a node, evictions, preemption by priority.

The scheduler is the real one and the nodes are objects alone: nothing runs on them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.cluster import kubelet
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import NODE_PROGRAMS, UnavailableError, ensured, minor
from e2e.cluster.kube import Kube, Object, Refused, path, until
from e2e.cluster.processes import end, spawn
from e2e.cluster.test_gitops import EXAMPLES, example

pytestmark = pytest.mark.cluster

MIG: Final = {"nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-2g.20gb": "2"}
RUNTIMES: Final = ("nvidia", "habana")
PLACED: Final[dict[str, dict[str, Any]]] = {
    "qwen-amd": {"resources": {"amd.com/gpu": "1"}, "groups": [44, 109], "node": "amd.com/gpu.device-id"},
    "qwen-intel": {
        "resources": {"gpu.intel.com/xe": "1"},
        "groups": [44, 109],
        "node": "intel.feature.node.kubernetes.io/gpu",
    },
    "qwen-gaudi": {"resources": {"habana.ai/gaudi": "2", "hugepages-2Mi": "9500Mi"}, "runtime": "habana"},
    "qwen-8b": {"resources": {"nvidia.com/mig-3g.40gb": "1"}, "runtime": "nvidia", "node": "nvidia.com/mig.strategy"},
    "qwen-1b": {"resources": {"nvidia.com/mig-2g.20gb": "1"}, "runtime": "nvidia", "node": "nvidia.com/mig.strategy"},
}
"""Pools of the examples, and what their pods have for their devices."""


@pytest.fixture
def runtimes(kube: Kube) -> None:
    """RuntimeClasses as the makers' operators bring them: a pod that names another one is refused."""
    for name in RUNTIMES:
        body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
        _made(kube, "apis/node.k8s.io/v1/runtimeclasses", body)


def _made(kube: Kube, where: str, body: Object) -> None:
    try:
        kube.request("POST", where, body)
    except Refused as refused:
        if refused.status != 409:  # another test's, made at the same time
            raise


@pytest.mark.parametrize("name", ["amd-instinct", "intel-gaudi", "intel-gpu", "nvidia-mig"])
def test_pods_of_an_example_have_its_devices(name: str, bench: Bench, runtimes: None) -> None:
    [file] = [file for file in EXAMPLES if file.stem == name]
    pools = example(file, bench.namespace)
    bench.operator()
    for pool in pools:
        bench.kube.create(pool)
    for pool in pools:
        named, wanted = pool["metadata"]["name"], PLACED[pool["metadata"]["name"]]
        bench.settled(named)
        spec: Object = pods(bench, named)[0]["spec"]
        engine = next(each for each in spec["containers"] if each["name"] == "engine")
        limits = engine["resources"]["limits"]
        assert {key: limits[key] for key in wanted["resources"]} == wanted["resources"]
        assert spec.get("runtimeClassName") == wanted.get("runtime")
        assert spec["securityContext"].get("supplementalGroups") == wanted.get("groups")
        assert "node" not in wanted or wanted["node"] in spec["nodeSelector"]
        assert "--enable-scale-out" in engine["args"], "the version was read, or named"


def test_a_runtime_class_that_is_not_there_is_told(bench: Bench) -> None:
    bench.operator(resync_seconds=1)
    bench.create(podTemplate={"spec": {"runtimeClassName": "nowhere"}})
    until(lambda: bench.reason("WorkersAvailable") == "PodsRefused")
    assert "nowhere" in (bench.condition("WorkersAvailable") or {})["message"]


def pods(bench: Bench, pool: str) -> list[Object]:
    """A pool's pods that are not on their way out."""
    found = bench.kube.list("Pod", bench.namespace)
    alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return [pod for pod in alive if pod["metadata"]["labels"].get("cachefleet.io/pool") == pool]


def evict(bench: Bench, pod: Object) -> int:
    """Ask for an eviction as `kubectl drain` does; the answer's status."""
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": bench.namespace}}
    try:
        bench.kube.request("POST", path("Pod", bench.namespace, name) + "/eviction", body)
    except Refused as refused:
        return refused.status
    return 201


@pytest.mark.parametrize(("rollout", "at_once"), [({}, 1), ({"maxUnavailable": 2}, 2)])
def test_no_more_workers_are_evicted_at_a_time_than_the_rollout_may_miss(
    rollout: dict[str, int], at_once: int, bench: Bench
) -> None:
    bench.operator()
    bench.create(replicas=3, rollout=rollout)
    bench.settled()
    for pod in pods(bench, "demo"):
        kubelet.ready(bench.kube, pod)
    until(lambda: (bench.child("PodDisruptionBudget") or {}).get("status", {}).get("disruptionsAllowed") == at_once)
    assert [evict(bench, pod) for pod in pods(bench, "demo")] == [*[201] * at_once, *[429] * (3 - at_once)]


def test_the_only_worker_of_a_pool_can_be_evicted(bench: Bench) -> None:
    """A budget that forbade it would hold up every drain of its node."""
    bench.operator()
    bench.create(replicas=1)
    bench.settled()
    [pod] = pods(bench, "demo")
    kubelet.ready(bench.kube, pod)
    until(lambda: (bench.child("PodDisruptionBudget") or {}).get("status", {}).get("disruptionsAllowed") == 1)
    assert evict(bench, pod) == 201


class Node:
    """A node of a test's own, and a scheduler for pods that ask for it by name."""

    def __init__(self, bench: Bench, devices: dict[str, str]) -> None:
        self.name = bench.namespace
        self._bench = bench
        capacity = {"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti", **devices}
        labels = {"test": bench.namespace}
        metadata = {"name": self.name, "labels": labels}
        bench.kube.request("POST", "api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        ready = {"type": "Ready", "status": "True", "reason": "r", "message": "", "lastHeartbeatTime": kubelet.NOW}
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
        patch = {"status": status}
        bench.kube.request("PATCH", f"api/v1/nodes/{self.name}/status", patch, form="application/merge-patch+json")

    @property
    def template(self) -> Object:
        """What brings a pool's pods here: its label, its scheduler, and no taint in the way, as no kubelet runs."""
        return {
            "nodeSelector": {"test": self.name},
            "schedulerName": self.name,
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 200,
        }

    def here(self, pool: str) -> list[Object]:
        """A pool's pods on it."""
        return [pod for pod in pods(self._bench, pool) if pod["spec"].get("nodeName") == self.name]


@pytest.fixture
def scheduler(bench: Bench) -> Iterator[None]:
    """A kube-scheduler for pods that name this test's namespace as their scheduler."""
    if minor() < 34:
        pytest.skip("the scheduler is of the pinned Kubernetes, and waits for resource.k8s.io/v1")
    try:
        program = ensured([each for each in NODE_PROGRAMS if each.name == "kube-scheduler"])["kube-scheduler"]
    except UnavailableError as problem:
        pytest.skip(str(problem))
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(bench.cluster.kubeconfig)},
        "profiles": [{"schedulerName": bench.namespace}],
    }
    file = bench.folder / "scheduler.yaml"
    file.write_text(yaml.safe_dump(configuration))
    own = [f"--{part}-kubeconfig={bench.cluster.kubeconfig}" for part in ("authentication", "authorization")]
    process: subprocess.Popen[bytes] = spawn([program, f"--config={file}", "--secure-port=0", *own], _log(bench))
    yield
    end(process)


def _log(bench: Bench) -> Path:
    return bench.folder / "scheduler.log"


def test_pools_stand_side_by_side_on_the_parts_of_one_device(bench: Bench, scheduler: None) -> None:
    node = Node(bench, MIG)
    bench.operator()
    for name, resource, replicas in (("large", "nvidia.com/mig-3g.40gb", 1), ("small", "nvidia.com/mig-2g.20gb", 3)):
        device = {"resource": resource, "memoryMiB": 8192}
        model = {"name": name}
        bench.create(name, device=device, model=model, replicas=replicas, podTemplate={"spec": node.template})
    until(lambda: (len(node.here("large")), len(node.here("small"))) == (1, 2))
    until(lambda: bench.reason("Progressing", "small") == "Unschedulable")
    assert "nvidia.com/mig-2g.20gb" in (bench.condition("Progressing", "small") or {})["message"]


def test_a_pool_of_higher_priority_takes_a_device_and_the_other_waits(bench: Bench, scheduler: None) -> None:
    high, low = (f"{name}-{bench.namespace}" for name in ("high", "low"))
    for name, value in ((high, 10000), (low, 1000)):
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        _made(bench.kube, "apis/scheduling.k8s.io/v1/priorityclasses", {**body, "value": value})
    node = Node(bench, {"nvidia.com/gpu": "2"})
    bench.operator(resync_seconds=1)

    def create(name: str, priority: str, replicas: int) -> None:
        template = {"spec": {**node.template, "priorityClassName": priority}}
        bench.create(name, model={"name": name}, replicas=replicas, podTemplate=template)

    create("batch", low, 2)
    until(lambda: len(node.here("batch")) == 2)
    for pod in node.here("batch"):
        kubelet.ready(bench.kube, pod)
    create("chat", high, 1)
    [victim] = until(lambda: _leaving(bench))
    assert victim["metadata"]["labels"]["cachefleet.io/pool"] == "batch"
    assert victim["metadata"]["deletionGracePeriodSeconds"] == 200, "it drains as ever"
    gone = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
    bench.kube.request("DELETE", path("Pod", bench.namespace, victim["metadata"]["name"]), gone)  # as its kubelet does
    until(lambda: len(node.here("chat")) == 1)
    until(lambda: bench.reason("Progressing", "batch") == "Unschedulable")
    assert len(node.here("batch")) == 1


def _leaving(bench: Bench) -> list[Object]:
    return [pod for pod in bench.kube.list("Pod", bench.namespace) if "deletionTimestamp" in pod["metadata"]]
