"""GitOps before a real API server: what Argo CD and Flux have applied is what is there, and they see how a pool is.

Argo CD applies by the client or the server, Flux by the server; both compare what they would apply with what there is,
as `kubectl diff` does. Flux and other appliers wait by kstatus, Argo CD by the script of docs/gitops.md
(tests/docs/test_argo_health.py).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cachefleet_core.pool.manifest import documents
from e2e.cluster import kubelet
from e2e.cluster.api_server import ApiServer
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import KSTATUS, ensured
from e2e.cluster.kube import Kube, Object, until
from e2e.cluster.test_chart import NO_CRD, OPERATORS, named, placed, places
from tests.chart import helm
from tests.chart.matrix import MATRIX

__all__ = ["places"]

pytestmark = pytest.mark.cluster

EXAMPLES: Final = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
SERVER: Final = ("--server-side", "--force-conflicts", "--field-manager=argocd-controller")
WAYS: Final = {"server": SERVER, "client": ()}


class Applier:
    """Applies manifests again and again, as a GitOps controller does."""

    def __init__(self, cluster: ApiServer, way: str) -> None:
        if cluster.binaries.kubectl is None:
            pytest.skip("KUBEBUILDER_ASSETS has no kubectl")
        self._kubectl = [str(word) for word in cluster.kubectl()]
        self._way = WAYS[way]

    def apply(self, manifests: list[Object]) -> None:
        done = self._run("apply", manifests)
        assert done.returncode == 0, done.stderr

    def diff(self, manifests: list[Object]) -> str:
        """What another apply would change, "" where nothing; a status that is written meanwhile is in it, too."""
        done = self._run("diff", manifests)
        assert done.returncode in {0, 1}, done.stderr
        return done.stdout

    def _run(self, verb: str, manifests: list[Object]) -> subprocess.CompletedProcess[str]:
        command = [*self._kubectl, verb, *self._way, "-f", "-"]
        text = yaml.safe_dump_all(manifests)
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=120)


def example(path: Path, namespace: str) -> list[Object]:
    """Its manifests, in a namespace of the test."""
    made = [dict(each) for _, each in documents(path.read_text())]
    of_cluster = [each for each in made if each["kind"] == "PriorityClass"]
    return [
        each if each in of_cluster else each | {"metadata": {**each["metadata"], "namespace": namespace}}
        for each in made
    ]


def pools_of(bench: Bench, manifests: list[Object]) -> Iterator[Object]:
    for each in manifests:
        if each["kind"] == "PrefixCachePool":
            yield bench.kube.read("PrefixCachePool", bench.namespace, each["metadata"]["name"])


def seen(bench: Bench, manifests: list[Object]) -> bool:
    """Whether the operator has told of each pool as it is."""
    pools = pools_of(bench, manifests)
    return all(pool["status"]["observedGeneration"] == pool["metadata"]["generation"] for pool in pools)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_applied_example_is_what_is_there(path: Path, way: str, bench: Bench) -> None:
    manifests, applier = example(path, bench.namespace), Applier(bench.cluster, way)
    bench.operator()
    applier.apply(manifests)
    until(lambda: seen(bench, manifests))
    until(lambda: applier.diff(manifests) == "")
    applier.apply(manifests)
    pools = list(pools_of(bench, manifests))
    assert [pool["metadata"]["generation"] for pool in pools] == [1] * len(pools), "nothing of a spec was written again"
    for pool in pools:
        owned = {each["manager"]: set(_fields(each)) for each in pool["metadata"]["managedFields"]}
        assert owned.pop("cachefleet-operator") == {"status"}
        assert all("status" not in fields for fields in owned.values())


def _fields(entry: Object) -> Iterator[str]:
    return (name.removeprefix("f:") for name in entry["fieldsV1"])


@pytest.mark.parametrize("way", WAYS)
def test_workers_that_an_autoscaler_sets_are_no_difference(way: str, bench: Bench) -> None:
    manifest, applier = bench.pool(), Applier(bench.cluster, way)
    del manifest["spec"]["replicas"]
    bench.operator()
    applier.apply([manifest])
    bench.kube.patch("PrefixCachePool", bench.namespace, "demo", {"spec": {"replicas": 3}}, subresource="scale")
    until(lambda: seen(bench, [manifest]))
    until(lambda: applier.diff([manifest]) == "")
    applier.apply([manifest])
    assert bench.kube.read("PrefixCachePool", bench.namespace, "demo")["spec"]["replicas"] == 3


def test_what_is_edited_by_hand_is_a_difference(bench: Bench) -> None:
    """The comparison can fail."""
    manifest, applier = bench.pool(), Applier(bench.cluster, "server")
    applier.apply([manifest])
    bench.edit(hit={"threshold": 0.5})
    assert applier.diff([manifest]) == "", "a field that the manifest does not have is not its own"
    bench.edit(prefixCache={"budgetMiB": 100})
    assert "budgetMiB" in applier.diff([manifest])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("values", ["defaults", "guarded, namespaced", "persistent", "autoscaled", "database"])
def test_an_applied_chart_is_what_is_there(
    values: str, way: str, controllers: ApiServer, kube: Kube, places: dict[str, str]
) -> None:
    home = places[helm.NAMESPACE]
    objects = helm.template(placed({**MATRIX[values], **NO_CRD}, places), release=named(home), namespace=home)
    mine = [each for each in objects if each["apiVersion"] not in OPERATORS and not _is_test(each)]
    applier = Applier(controllers, way)
    applier.apply(mine)
    for marker in (each["metadata"]["name"] for each in mine if each["metadata"]["name"].endswith("-access")):
        kube.patch("ConfigMap", home, marker, {"data": {"keys": "made"}})  # as the control plane does
    assert applier.diff(mine) == ""


@pytest.mark.parametrize("way", WAYS)
def test_an_applied_definition_is_what_is_there(way: str, cluster: ApiServer) -> None:
    definitions = helm.template().of("CustomResourceDefinition")
    applier = Applier(cluster, way)
    applier.apply(definitions)
    assert len(definitions) == 1
    assert applier.diff(definitions) == ""


def test_the_chart_renders_the_same_text_twice() -> None:
    for values in MATRIX.values():
        command = ["template", helm.RELEASE, str(helm.CHART), "--values", "-"]
        first, second = (helm.run(*command, given=yaml.safe_dump(dict(values))) for _ in range(2))
        assert first == second


def _is_test(found: Object) -> bool:
    return "helm.sh/hook" in (found["metadata"].get("annotations") or {})


@cache
def kstatus_program() -> str:
    return str(ensured([KSTATUS])[KSTATUS.name])


def kstatus(found: Object) -> str:
    """What kstatus says of an object."""
    done = subprocess.run([kstatus_program()], input=json.dumps(found), capture_output=True, text=True, check=True)
    return done.stdout.partition(":")[0]


def of_kstatus(bench: Bench) -> str:
    return kstatus(bench.kube.read("PrefixCachePool", bench.namespace, "demo"))


def test_kstatus_waits_for_a_pool_that_nobody_has_seen_until_it_serves(bench: Bench) -> None:
    bench.create(replicas=1)
    assert of_kstatus(bench) == "InProgress"
    bench.operator(resync_seconds=1)
    bench.settled()
    assert of_kstatus(bench) == "InProgress"
    until(lambda: _started(bench) and of_kstatus(bench) == "Current", seconds=120)
    bench.edit(replicas=2)
    assert of_kstatus(bench) == "InProgress"
    until(lambda: bench.reason("Ready") in {"SomeReady", "RollingOut"})
    assert of_kstatus(bench) == "InProgress"
    bench.edit(replicas=0)
    until(lambda: bench.reason("Ready") == "NoWorkersWanted")
    assert of_kstatus(bench) == "Current"


def _started(bench: Bench) -> bool:
    """Have all pods that there are now take traffic."""
    for pod in bench.kube.list("Pod", bench.namespace):
        kubelet.ready(bench.kube, pod)
    return True


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"prefixCache": {"budgetMiB": 9999}}, "BudgetExceedsKVCache"),
        ({"podTemplate": {"spec": {"containers": [{"name": "engine", "command": ["sh"]}]}}}, "InvalidPodTemplate"),
    ],
)
def test_kstatus_gives_up_where_only_a_change_helps(spec: dict[str, Any], reason: str, bench: Bench) -> None:
    bench.operator(resync_seconds=1)
    bench.create(**spec)
    until(lambda: bench.reason("Stalled") == reason)
    assert of_kstatus(bench) == "Failed"
    bench.edit(prefixCache={"budgetMiB": 100}, podTemplate=None)
    until(lambda: bench.reason("Stalled") == "Converges")
    assert of_kstatus(bench) == "InProgress"


def test_kstatus_waits_where_what_is_missing_may_come(bench: Bench) -> None:
    """A template that is applied with the pool, or after it."""
    bench.operator(resync_seconds=1)
    bench.create(model={"chatTemplate": {"configMapKeyRef": {"name": "later", "key": "k"}}})
    until(lambda: bench.reason("Ready") == "ChatTemplateMissing")
    assert of_kstatus(bench) == "InProgress"


def test_kstatus_gives_up_on_a_pool_only_while_it_is_there(bench: Bench) -> None:
    bench.create(prefixCache={"budgetMiB": 9999})
    pool = bench.kube.read("PrefixCachePool", bench.namespace, "demo")
    pool["metadata"]["deletionTimestamp"] = kubelet.NOW
    assert kstatus(pool) == "Terminating"
