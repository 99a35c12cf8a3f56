"""Many pools, little permission, a long absence of the API server."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest

from e2e.cluster import rights
from e2e.cluster.bench import Bench
from e2e.cluster.control_plane import Identity
from e2e.cluster.kube import until
from e2e.cluster.operator_process import OperatorProcess

pytestmark = pytest.mark.cluster

POOLS: Final = 100
DONE: Final = 'cachefleet_operator_reconciles_total{outcome="done"}'
LEASE: Final[dict[str, Any]] = {"lease_seconds": 10, "renew_seconds": 5, "stop_seconds": 5, "retry_seconds": 0.2}


@pytest.mark.timeout(400)
def test_a_hundred_pools_are_made_true_and_a_second_look_writes_nothing(bench: Bench) -> None:
    for number in range(POOLS):
        bench.create(f"pool-{number}", replicas=0, model={"name": f"model-{number}"})
    started = time.monotonic()
    first = bench.operator()
    until(lambda: _told(bench) == POOLS, seconds=300)
    print(f"{POOLS} pools after {time.monotonic() - started:.1f} s")
    until(lambda: _at_rest(first), seconds=120)
    assert first.stop() == 0
    before = bench.writes()
    second = bench.operator(lease_name="second")
    started = time.monotonic()
    until(lambda: second.metric(DONE) >= POOLS, seconds=120)
    print(f"{POOLS} pools looked at again in {time.monotonic() - started:.1f} s")
    assert bench.writes() == before


def test_a_role_of_one_namespace_is_all_it_needs(bench: Bench) -> None:
    who = Identity(f"narrow-{bench.namespace}")
    rights.grant_role(bench.kube, who, bench.namespace)
    other = f"other-{bench.namespace}"
    bench.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    bench.stack.callback(bench.kube.delete, "Namespace", "", other)
    rights.grant_role(bench.kube, who, other)
    operator = bench.operator(identity=who, namespaces=f"{bench.namespace},{other}", lease_name="narrow")
    bench.create()
    bench.settled()
    there = bench.pool("there")
    there["metadata"]["namespace"] = other
    bench.kube.create(there)
    until(lambda: bench.kube.get("Deployment", other, "there-workers"))
    assert operator.probe("/readyz") == (200, "ok")
    refused = [each for each in rights.by(bench.cluster.requests(), who) if _code(each) == 403]
    assert refused == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_api_server_away_for_five_minutes_is_caught_up_with(bench: Bench) -> None:
    operator = bench.operator(**LEASE)
    bench.create()
    bench.settled()
    with bench.cluster.frozen("kube-apiserver"):
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


def _at_rest(operator: OperatorProcess) -> bool:
    before = _looks(operator)
    time.sleep(1)
    return _looks(operator) == before and operator.metric("cachefleet_operator_queue_depth") == 0


def _looks(operator: OperatorProcess) -> float:
    return operator.metric("cachefleet_operator_reconcile_seconds_count")


def _code(request: Any) -> int:
    return int(request.get("responseStatus", {}).get("code", 0))
