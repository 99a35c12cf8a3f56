"""Many pools, little permission, a long absence of the API server."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest

from e2e.cluster import rights
from e2e.cluster.api_server import Identity
from e2e.cluster.bench import Bench
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.kube import until
from e2e.cluster.operator_process import OperatorProcess

pytestmark = pytest.mark.cluster

DONE: Final = 'cachefleet_operator_reconciles_total{outcome="done"}'
LEASE: Final[dict[str, Any]] = {"lease_seconds": 10, "renew_seconds": 5, "stop_seconds": 5, "retry_seconds": 0.2}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("pools", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_many_pools_are_made_true_and_a_second_look_writes_nothing(bench: Bench, pools: int) -> None:
    for number in range(pools):
        bench.create(f"pool-{number}", replicas=0, model={"name": f"model-{number}"})
    started = time.monotonic()
    first = bench.operator()
    until(lambda: _told(bench) == pools, seconds=300)
    print(f"{pools} pools after {time.monotonic() - started:.1f} s")
    until(lambda: _carried_out(bench), seconds=120)
    until(lambda: _at_rest(first), seconds=120)
    assert first.stop() == 0
    before = bench.writes()
    second = bench.operator(lease_name="second")
    started = time.monotonic()
    until(lambda: second.metric(DONE) >= pools, seconds=120)
    print(f"{pools} pools looked at again in {time.monotonic() - started:.1f} s")
    assert bench.writes() == before


def test_a_role_of_one_namespace_is_all_it_needs(bench: Bench) -> None:
    who = Identity(f"narrow-{bench.namespace}")
    rights.grant_role(bench.kube, who, bench.namespace)
    other = f"other-{bench.namespace}"
    bench.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    rights.grant_role(bench.kube, who, other)
    operator = bench.operator(identity=who, namespaces=f"{bench.namespace},{other}", lease_name="narrow")
    bench.create()
    bench.settled()
    there = bench.pool("there")
    there["metadata"]["namespace"] = other
    bench.kube.create(there)
    until(lambda: bench.kube.get("Deployment", other, "there-workers"))
    assert operator.probe("/readyz") == (200, "ok")
    refused = [each for each in rights.by(bench.cluster.requests(who.name), who) if _code(each) == 403]
    assert refused == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_api_server_away_for_five_minutes_is_caught_up_with(own: ControlPlane, lonely: Bench) -> None:
    bench = lonely
    operator = bench.operator(**LEASE)
    bench.create()
    bench.settled()
    with own.frozen("kube-apiserver"):
        time.sleep(300)
        assert operator.probe("/healthz") == (200, "ok")
    started = time.monotonic()
    bench.edit(replicas=1)
    bench.settled()
    print(f"caught up after {time.monotonic() - started:.1f} s")
    assert operator.running


def _told(bench: Bench) -> int:
    pools = bench.kube.list("PrefixCachePool", bench.namespace)
    conditions = (pool.get("status", {}).get("conditions", ()) for pool in pools)
    return sum(
        any(each["reason"] == "NoWorkersWanted" and each["type"] == "Ready" for each in found) for found in conditions
    )


def _carried_out(bench: Bench) -> bool:
    """Whether controllers have seen each Deployment, and so nothing of them is news any more."""
    found = bench.kube.list("Deployment", bench.namespace)
    return all(each["status"].get("observedGeneration") == each["metadata"]["generation"] for each in found)


def _at_rest(operator: OperatorProcess) -> bool:
    before = _looks(operator)
    time.sleep(1)
    return _looks(operator) == before and operator.metric("cachefleet_operator_queue_depth") == 0


def _looks(operator: OperatorProcess) -> float:
    return operator.metric("cachefleet_operator_reconcile_seconds_count")


def _code(request: Any) -> int:
    return int(request.get("responseStatus", {}).get("code", 0))
