"""The operator through faults: killed between any two writes, several at once, away, without its CRD."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import pytest

from cachefleet_operator.operator_times import OperatorTimes
from e2e.cluster import rights
from e2e.cluster.apart import bench_on
from e2e.cluster.api_server import ApiServer, Identity
from e2e.cluster.bench import CHILDREN, Bench
from e2e.cluster.binaries import Binaries
from e2e.cluster.control_plane import CRDS, ControlPlane
from e2e.cluster.kube import Kube, Object, until
from e2e.cluster.operator_process import OperatorProcess
from e2e.cluster.proxy import WriteProxy
from tests.chaos.measurements import timed

pytestmark = pytest.mark.cluster

LEASE: Final[dict[str, Any]] = {"lease_seconds": 10, "renew_seconds": 5, "stop_seconds": 5, "retry_seconds": 0.2}
INTERVALS: Final = ("discovery_seconds", "retry_first_seconds", "retry_longest_seconds")
WAITING: Final = "cachefleet_operator_waiting"
MOST_WRITES = 30
SIDE_BY_SIDE = 4
QUIET_SECONDS = 3.0


def created(bench: Bench) -> None:
    bench.create(prefixCache={"budgetMiB": 256})


def edited(bench: Bench) -> None:
    bench.edit(replicas=3, hit={"threshold": 0.5}, engine={"env": [{"name": "X", "value": "1"}]})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("change", [created, edited], ids=["created", "edited"])
def test_killed_after_any_write_it_ends_the_same(
    controllers: ApiServer, kube: Kube, tmp_path: Path, change: Callable[[Bench], None]
) -> None:
    with _changed(controllers, kube, tmp_path, change) as bench:  # never killed, the measure of the others
        bench.operator(lease_name="next")
        wanted = _steady(bench)

    def ends_the_same(k: int) -> bool:
        """Whether there was a write number ``k`` at all."""
        with _changed(controllers, kube, tmp_path, change) as bench:
            died = _killed_after(bench, k, wanted)
            if died:
                bench.operator(lease_name="next")
                until(partial(_is, bench, wanted))
            return died

    with ThreadPoolExecutor(SIDE_BY_SIDE) as at_once:
        writes = 0
        while all(died := list(at_once.map(ends_the_same, range(writes + 1, writes + 1 + SIDE_BY_SIDE)))):
            writes += SIDE_BY_SIDE
        writes += died.index(False)
    assert 2 <= writes < MOST_WRITES


@contextmanager
def _changed(cluster: ApiServer, kube: Kube, folder: Path, change: Callable[[Bench], None]) -> Iterator[Bench]:
    """A namespace of its own where a pool was changed and no operator has seen it."""
    with ExitStack() as stack:
        bench = _bench(cluster, kube, folder, stack)
        if change is edited:
            created(bench)
            first = bench.operator(lease_name="first")
            bench.settled()
            first.stop()
        change(bench)
        yield bench


def test_a_killed_leader_is_followed_by_the_other(bench: Bench) -> None:
    first = bench.operator(**LEASE)
    until(lambda: first.leads)
    second = bench.operator(**LEASE)
    until(lambda: second.probe("/readyz") == (200, "ok"))
    bench.create()
    bench.settled()
    assert not second.leads
    assert second.metric('cachefleet_operator_reconciles_total{outcome="wrote"}') == 0
    first.kill()
    bench.edit(replicas=1)
    bench.settled()
    assert second.leads


def test_a_stopped_leader_lets_go_at_once(bench: Bench) -> None:
    first = bench.operator()
    until(lambda: first.leads)
    second = bench.operator(retry_seconds=0.2)
    assert first.stop() == 0
    until(lambda: second.leads)  # sooner than its Lease would end


def test_a_frozen_leader_wakes_up_as_none(bench: Bench) -> None:
    frozen_as, other_as = Identity(f"frozen-{bench.namespace}"), bench.identity
    rights.grant(bench.kube, frozen_as, bench.namespace)
    frozen = bench.operator(identity=frozen_as, **LEASE)
    bench.create()
    bench.settled()
    other = bench.operator(identity=other_as, **LEASE)
    frozen.freeze()
    try:
        bench.edit(replicas=3)
        bench.settled()
        bench.edit(replicas=1)
        bench.settled()
        before = rights.writes(bench.cluster.requests(frozen_as.name), frozen_as)
    finally:
        frozen.thaw()
    until(lambda: not frozen.leads)
    until(lambda: frozen.probe("/readyz") == (200, "ok"))
    assert rights.writes(bench.cluster.requests(frozen_as.name), frozen_as) == before
    other.kill()
    bench.edit(replicas=2)
    bench.settled()
    assert len(rights.writes(bench.cluster.requests(frozen_as.name), frozen_as)) > len(before)


def test_an_api_server_that_hangs_ends_a_term_and_another_begins(own: ControlPlane, lonely: Bench) -> None:
    bench = lonely
    operator = bench.operator(**LEASE)
    bench.create()
    bench.settled()
    with own.frozen("kube-apiserver"):
        until(lambda: not operator.leads)
        assert operator.probe("/healthz") == (200, "ok")
    bench.edit(replicas=1)
    bench.settled()
    assert operator.leads


def test_only_the_final_state_counts_for_one_that_was_away(bench: Bench) -> None:
    first = bench.operator()
    for name in ("changed", "deleted", "replaced"):
        bench.create(name)
    for name in ("changed", "deleted", "replaced"):
        bench.settled(name)
    first.kill()
    bench.create("made")
    bench.edit("changed", replicas=1)
    bench.edit("changed", engine={"image": "example.org/vllm:2"})
    bench.kube.delete("PrefixCachePool", bench.namespace, "deleted")
    bench.kube.delete("PrefixCachePool", bench.namespace, "replaced", policy="Orphan")
    until(lambda: bench.kube.get("PrefixCachePool", bench.namespace, "replaced") is None)
    bench.create("replaced", replicas=3)
    bench.operator(lease_name="next")
    for name in ("made", "changed", "replaced"):
        bench.settled(name)
    until(lambda: all(bench.child(kind, "deleted") is None for kind in CHILDREN))
    changed = bench.kube.read("Deployment", bench.namespace, "changed-workers")
    assert changed["spec"]["template"]["spec"]["containers"][0]["image"] == "example.org/vllm:2"
    replaced = bench.kube.read("PrefixCachePool", bench.namespace, "replaced")
    adopted = bench.kube.read("Deployment", bench.namespace, "replaced-workers")
    assert adopted["metadata"]["ownerReferences"][0]["uid"] == replaced["metadata"]["uid"]


def test_lists_of_before_destroy_nothing(bench: Bench) -> None:
    """An operator that starts is shown pools as they were: one is deleted since, one has another spec."""
    with WriteProxy(bench.cluster, bench.identity) as proxy:
        first = bench.operator(server=proxy.url)
        for name in ("kept", "gone"):
            bench.create(name)
            bench.settled(name)
        first.stop()
        again = bench.operator(server=proxy.url, lease_name="again")  # lists both, as they will be shown
        until(lambda: again.leads)
        again.stop()
        bench.kube.delete("PrefixCachePool", bench.namespace, "gone")
        until(lambda: all(bench.child(kind, "gone") is None for kind in CHILDREN))
        bench.edit("kept", replicas=1)
        between = bench.operator(lease_name="between")
        bench.settled("kept")
        between.stop()
        before = {kind: _uid(bench.child(kind, "kept")) for kind in CHILDREN}
        with proxy.stale(), timed(17, "as it is now, after lists of before", at_most=60):
            asked = len(bench.cluster.requests())
            misled = bench.operator(server=proxy.url, lease_name="misled")
            until(lambda: misled.leads)
            bench.edit("kept", replicas=3)
            bench.settled("kept")
            until(lambda: all(bench.child(kind, "gone") is None for kind in CHILDREN))
        assert proxy.lists_of_before > 0
        assert {kind: _uid(bench.child(kind, "kept")) for kind in CHILDREN} == before
        deeds = rights.writes(bench.cluster.requests()[asked:], bench.identity)
        assert [deed for deed in deeds if deed.startswith("delete")] == []
        deployment = bench.kube.read("Deployment", bench.namespace, "kept-workers")
        assert deployment["spec"]["replicas"] == 3


def _uid(found: Object | None) -> str:
    return "" if found is None else str(found["metadata"]["uid"])


def test_watches_that_expired_are_begun_anew(own: ControlPlane, lonely: Bench) -> None:
    """An API server that has started anew answers an old resource version with 410: all is listed again."""
    bench = lonely
    bench.operator(resync_seconds=3600)
    bench.create()
    until(partial(bench.child, "Deployment"))
    term = _term(bench)
    for number in range(20):  # versions go on, unseen by the operator's watches
        name = f"{bench.namespace}-{number}"
        bench.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    asked = len(own.requests())
    own.restart_api_server()
    bench.create("second")
    until(partial(bench.child, "Deployment", "second"))
    bench.kube.delete("Service", bench.namespace, "demo-workers")
    until(partial(bench.child, "Service"))
    assert _term(bench) == term
    assert _listed(own.requests()[asked:], bench.identity) >= {"prefixcachepools", "services"}


def test_one_operator_for_all_namespaces(lonely: Bench) -> None:
    lonely.operator(namespaces="", lease_name="wide")
    lonely.create()
    lonely.settled()


def test_waits_for_its_crd_and_survives_losing_it(binaries: Binaries, tmp_path: Path) -> None:
    """At the intervals it has by default: what tells of the loss are its watches, and not the resync."""
    if binaries.kubectl is None:
        pytest.skip("KUBEBUILDER_ASSETS has no kubectl")
    with ControlPlane(binaries, crds=None, controllers=False) as cluster, ExitStack() as stack:
        kube = Kube(cluster)
        stack.callback(kube.close)
        rights.define(kube)
        bench = bench_on(cluster, tmp_path, stack)
        defaults = {name: getattr(OperatorTimes(), name) for name in INTERVALS}
        operator = bench.operator(namespaces="", **defaults)
        _tells_that_it_waits(operator)
        _install_and_serve(bench, operator, "first")
        term = _term(bench)
        kube.delete("CustomResourceDefinition", "", "prefixcachepools.cachefleet.io")
        _tells_that_it_waits(operator)
        _install_and_serve(bench, operator, "second")
        assert _term(bench) == term
        assert "Traceback" not in (bench.folder / "operator.log").read_text()


def _install_and_serve(bench: Bench, operator: OperatorProcess, name: str) -> None:
    assert isinstance(bench.cluster, ControlPlane)
    bench.cluster.install(CRDS)
    until(lambda: operator.probe("/readyz") == (200, "ok"))
    assert operator.metric(WAITING) == 0
    bench.create(name)
    until(partial(bench.child, "Deployment", name))


def _tells_that_it_waits(operator: OperatorProcess) -> None:
    missing = (503, "the CRD prefixcachepools.cachefleet.io is not installed")
    until(lambda: operator.probe("/readyz") == missing or not operator.running, seconds=60)
    assert operator.running
    assert operator.probe("/healthz") == (200, "ok")
    assert operator.metric(WAITING) == 1


def _term(bench: Bench) -> str:
    """When the leader became one: no other has followed it, nor has it let go."""
    return str(bench.kube.read("Lease", bench.namespace, "cachefleet-operator")["spec"]["acquireTime"])


def _listed(requests: list[Object], who: Identity) -> set[str]:
    return {each["objectRef"]["resource"] for each in rights.by(requests, who) if each["verb"] == "list"}


def _bench(cluster: ApiServer, kube: Kube, folder: Path, stack: ExitStack) -> Bench:
    namespace = f"kill-{uuid.uuid4().hex[:8]}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    bench = Bench(cluster, kube, namespace, Identity(f"operator-{namespace}"), folder, stack)
    rights.grant(kube, bench.identity, namespace)
    stack.enter_context(kube.followed(namespace))
    return bench


def _killed_after(bench: Bench, k: int, wanted: Object) -> bool:
    """Whether an operator made ``k`` writes and died of it; else it came to its end with fewer."""
    victims: SimpleQueue[OperatorProcess] = SimpleQueue()
    with WriteProxy(bench.cluster, bench.identity) as proxy:
        proxy.strike(k, lambda: victims.get().kill())
        victim = bench.operator(server=proxy.url, lease_name="victim")
        victims.put(victim)
        until(lambda: not victim.running or bench.essence() == wanted)
        victim.kill()
        return len(proxy.writes) >= k


def _steady(bench: Bench) -> Object:
    """What a pool comes to when nobody is killed: controllers are done, and then nothing moves for a while."""
    bench.settled()

    def check() -> Object:
        _rolled_as_far_as_it_goes(bench)
        before = bench.essence()
        time.sleep(QUIET_SECONDS)
        _is(bench, before)
        return before

    return until(check)


def _rolled_as_far_as_it_goes(bench: Bench) -> None:
    """No new pod becomes ready, so no old one goes: beside those there is as much surge as is allowed."""
    deployment = bench.kube.read("Deployment", bench.namespace, "demo-workers")
    sets = bench.kube.list("ReplicaSet", bench.namespace)
    spec, status = deployment["spec"], deployment["status"]
    surge = spec["strategy"]["rollingUpdate"]["maxSurge"] if len(sets) > 1 else 0
    assert status.get("observedGeneration") == deployment["metadata"]["generation"]
    assert status.get("updatedReplicas", 0) > 0
    assert sum(each["spec"]["replicas"] for each in sets) == spec["replicas"] + surge
    assert sum(each["status"]["replicas"] for each in sets) == status["replicas"] == spec["replicas"] + surge


def _is(bench: Bench, wanted: Object) -> bool:
    assert bench.essence() == wanted
    return True
