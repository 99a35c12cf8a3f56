"""``helm upgrade`` from the chart of the release before, CRD included, with pools running: before a real API server.

``charts/cachefleet-0.1.0.tgz`` is the chart as its release packaged it. The operator beside it is this tree's, with the
same images before and after: what is tried is the chart and its CRD, not another operator's templates of pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from e2e.cluster import rights
from e2e.cluster.api_server import Identity
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import Binaries
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.kube import Kube, Object, Refused, until
from e2e.cluster.test_chart import Helm
from e2e.cluster.test_operator_lifecycle import pods, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

BEFORE: Final = Path(__file__).parent / "charts" / "cachefleet-0.1.0.tgz"
CRD: Final = "prefixcachepools.cachefleet.io"
HOME: Final = "cachefleet-system"
POOLS: Final = ("plain", "with-everything")
SPEC: Final[Object] = {
    "prefixCache": {
        "budgetMiB": 256,
        "warmPrefixes": [{"name": "a", "messages": [{"role": "system", "content": "x"}]}],
    },
    "hit": {"threshold": 0.25, "objective": {"ratio": 0.5, "windowSeconds": 300}},
    "tenancy": {"isolation": "Shared"},
    "admission": {"maxQueueSeconds": 5},
    "podTemplate": {"spec": {"nodeSelector": {"gpu": "yes"}}},
}


@pytest.fixture
def before(binaries: Binaries, tmp_path: Path) -> Iterator[tuple[Bench, Helm]]:
    """A cluster with the release before, by helm, two pools whose workers are ready, and our operator."""
    with ExitStack() as stack:
        cluster = stack.enter_context(ControlPlane(binaries, crds=None))
        kube = stack.enter_context(closing(Kube(cluster)))
        for name in (HOME, "serving"):
            kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        run = Helm(cluster, HOME, tmp_path)
        run("install", "cachefleet", str(BEFORE), "--set", "controlPlane.replicas=1")
        until(lambda: _served(kube))
        rights.define(kube)
        bench = Bench(cluster, kube, "serving", Identity("operator"), tmp_path, stack)
        rights.grant(kube, bench.identity)
        bench.operator()
        stack.enter_context(kube.followed("serving"))
        for name, spec in zip(POOLS, ({}, SPEC), strict=True):
            running(bench, name, **spec)
        yield bench, run


def _served(kube: Kube) -> bool:
    found = kube.read("CustomResourceDefinition", "", CRD).get("status", {}).get("conditions", ())
    return any(one["type"] == "Established" and one["status"] == "True" for one in found)


def state(bench: Bench) -> Object:
    """What an upgrade must leave as it is: specs, and which pods there are."""
    told: Object = {}
    for name in POOLS:
        pool, made = bench.kube.read("PrefixCachePool", "serving", name), bench.child("Deployment", name)
        assert made is not None
        kept = ("uid", "generation", "annotations", "labels", "finalizers")
        told[name] = {
            "spec": pool["spec"],
            "pool": {key: pool["metadata"].get(key) for key in kept},
            "template": made["spec"]["template"],
            "rollouts": made["metadata"]["generation"],
            "pods": sorted(pod["metadata"]["uid"] for pod in pods(bench, name)),
        }
    return told


def workers(bench: Bench) -> Object:
    """The pods of each pool."""
    return {name: told["pods"] for name, told in state(bench).items()}


def unchanged(found: Object, now: Object) -> None:
    """All that was there is there; a newer definition may show its defaults beside it."""
    for name, was in found.items():
        assert _within(was.pop("spec"), now[name].pop("spec"))
        assert now[name] == was


def _within(less: object, more: object) -> bool:
    if isinstance(less, dict) and isinstance(more, dict):
        return all(key in more and _within(value, more[key]) for key, value in less.items())
    return less == more


def fields(kube: Kube) -> set[str]:
    """The fields of a pool's spec that the CRD has."""
    [version] = kube.read("CustomResourceDefinition", "", CRD)["spec"]["versions"]
    return set(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


def _ready(bench: Bench, name: str) -> bool:
    return bench.reason("Ready", name) == "WorkersReady"


def judged(bench: Bench) -> None:
    """The operator has seen a spec that it had not seen before, by the definition as it is now."""
    for name in POOLS:
        bench.edit(name, admission={"maxQueueSeconds": 7})
        until(partial(_ready, bench, name))


def _is_taken(bench: Bench) -> bool:
    """Whether the definition's new field may be said: the API server serves a changed one a moment later."""
    try:
        bench.kube.create(bench.pool("new", podIdentity="Fixed"), dry_run=True)
    except Refused:
        return False
    return True


def test_pools_and_their_pods_are_the_same_after_an_upgrade_and_the_way_back(before: tuple[Bench, Helm]) -> None:
    bench, run = before
    old, found = fields(bench.kube), state(bench)
    before_it = workers(bench)
    assert "podIdentity" not in old
    with pytest.raises(Refused, match="podIdentity"):
        bench.kube.create(bench.pool("new", podIdentity="Fixed"), dry_run=True)

    run("upgrade", "cachefleet", "--reset-then-reuse-values", values={})
    until(lambda: "podIdentity" in fields(bench.kube))
    until(partial(_is_taken, bench))
    assert old <= fields(bench.kube)
    assert bench.kube.read("Deployment", HOME, "cachefleet-controlplane")["spec"]["replicas"] == 1, "as it was set"
    unchanged(deepcopy(found), state(bench))
    judged(bench)
    assert workers(bench) == before_it

    run("rollback", "cachefleet", "1")
    until(lambda: "podIdentity" not in fields(bench.kube))
    judged(bench)
    assert workers(bench) == before_it
    run("uninstall", "cachefleet")
    assert workers(bench) == before_it
