"""HorizontalPodAutoscalers of the chart before a real API server: its own controller scales pools, by an adapter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import kubelet
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import minor
from e2e.cluster.external_metrics import ExternalMetrics, registered
from e2e.cluster.kube import Object, until
from e2e.cluster.test_operator_lifecycle import pods, running
from tests.chart.helm import template

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def autoscaler(bench: Bench, **pool: object) -> Object:
    """As the chart writes it, but without the quarter of an hour in which a load is remembered."""
    of = {"namespace": bench.namespace, "name": "demo", "maxWorkers": 4, "scaleInSeconds": 15, **pool}
    version = bench.kube.request("GET", "version")["gitVersion"].removeprefix("v")
    values = {"autoscaling": {"kind": "HorizontalPodAutoscaler", "pools": [of]}}
    [told] = template(values, kubernetes=version).of("HorizontalPodAutoscaler")
    made = bench.kube.create(told)
    assert made["spec"] == told["spec"] | {"behavior": made["spec"]["behavior"]}, "nothing is written in another form"
    told["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
    return bench.kube.patch("HorizontalPodAutoscaler", bench.namespace, "demo", {"spec": told["spec"]})


@pytest.fixture
def adapter(lonely: Bench) -> Iterator[ExternalMetrics]:
    made = ExternalMetrics(lonely.cluster, lonely.namespace)
    with made, registered(lonely.kube, lonely.namespace, made.port, lonely.cluster.ca):
        yield made


def tell(bench: Bench, adapter: ExternalMetrics, *, active: float, backlog: float, blocks: float) -> None:
    """What Prometheus would have of the pool."""
    told = {"active": active, "backlog_seconds": backlog, "busy_blocks": blocks}
    adapter.values |= {(bench.namespace, "demo", f"cachefleet_pool_{name}"): value for name, value in told.items()}


def wanted(bench: Bench) -> int:
    """Workers that the pool is to have."""
    return int(bench.kube.read("PrefixCachePool", bench.namespace, "demo")["spec"]["replicas"])


def settles(bench: Bench, replicas: int) -> None:
    """The pool is scaled so, and its pods are there and ready."""
    until(lambda: wanted(bench) == replicas, seconds=240)
    until(lambda: len(pods(bench)) == replicas, seconds=240)
    for pod in pods(bench):
        kubelet.ready(bench.kube, pod)


def test_a_pool_is_scaled_out_to_what_any_metric_asks_for(lonely: Bench, adapter: ExternalMetrics) -> None:
    lonely.operator()
    tell(lonely, adapter, active=1, backlog=5.0, blocks=0.3)  # 5 s of prompts, 2 s for a worker
    running(lonely)
    autoscaler(lonely)
    settles(lonely, 3)
    tell(lonely, adapter, active=1, backlog=0, blocks=3.1)  # as many blocks as 3.1 workers have, 0.8 for a worker
    settles(lonely, 4)
    # an autoscaler that went with the namespace of the test before may still ask for its own
    assert {pool for namespace, pool, _ in adapter.asked if namespace == lonely.namespace} == {"demo"}
    assert lonely.conditions().get("Degraded", {"status": "False"})["status"] == "False"


@pytest.mark.slow
def test_a_pool_is_scaled_in_one_worker_at_a_time(lonely: Bench, adapter: ExternalMetrics) -> None:
    lonely.operator()
    tell(lonely, adapter, active=0, backlog=0, blocks=0)
    running(lonely, replicas=4)
    autoscaler(lonely)
    for replicas in (3, 2, 1):
        settles(lonely, replicas)


def test_what_is_not_known_changes_nothing(lonely: Bench, adapter: ExternalMetrics) -> None:
    lonely.operator()
    running(lonely)
    autoscaler(lonely)
    found = until(lambda: _condition(lonely, "ScalingActive"))
    assert (found["status"], found["reason"]) == ("False", "FailedGetExternalMetric")
    tell(lonely, adapter, active=0, backlog=0, blocks=0)
    del adapter.values[lonely.namespace, "demo", "cachefleet_pool_busy_blocks"]
    looked = len(lonely.cluster.requests(f"{lonely.namespace}/cachefleet_pool_busy_blocks"))
    until(lambda: len(lonely.cluster.requests(f"{lonely.namespace}/cachefleet_pool_busy_blocks")) > looked + 1)
    assert wanted(lonely) == 2


def _condition(bench: Bench, kind: str) -> Object | None:
    found = bench.kube.read("HorizontalPodAutoscaler", bench.namespace, "demo").get("status", {})
    return next((one for one in found.get("conditions", ()) if one["type"] == kind), None)


@pytest.mark.skipif(minor() < 37, reason="HorizontalPodAutoscalers scale to zero from Kubernetes 1.37 on")
def test_to_zero_and_from_zero(lonely: Bench, adapter: ExternalMetrics) -> None:
    lonely.operator()
    tell(lonely, adapter, active=0, backlog=0, blocks=0)
    running(lonely, replicas=1)
    autoscaler(lonely, minWorkers=0)
    settles(lonely, 0)
    tell(lonely, adapter, active=1, backlog=0, blocks=0)
    settles(lonely, 1)
