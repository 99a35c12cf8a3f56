"""What autoscalers read of a fleet: unmet demand, work that waits, and how long a pool has been idle."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.fleet.demand import REFUSED_SECONDS, Demand
from cachefleet_controlplane.fleet.fleet_metrics import FleetCollector
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.routing.decision import Prompt
from tests.controlplane.fleets import MODEL, LiveFleet, fleet_of, pool, view
from tests.controlplane.waiting import value

FLEET = ("default", MODEL)


def test_a_refused_request_counts_for_a_minute() -> None:
    now = [100.0]
    demand = Demand(lambda: now[0])
    for second in (0.0, 0.5, 1.0):
        now[0] = 100 + second
        demand.refused()
    with demand.holding():
        assert demand.unserved == 4
    now[0] = 101 + REFUSED_SECONDS
    assert demand.unserved == 1
    now[0] += 1
    assert demand.unserved == 0


def test_however_many_are_refused_little_is_kept() -> None:
    now = [0.0]
    demand = Demand(lambda: now[0])
    for number in range(100_000):
        now[0] = number / 100
        demand.refused()
    assert demand.unserved == pytest.approx(100 * REFUSED_SECONDS, abs=100)
    assert len(demand._refused) <= REFUSED_SECONDS + 1


def test_demand_is_a_metric_by_pool_and_model_even_without_a_worker() -> None:
    fleet, metrics = LiveFleet(), Metrics()
    metrics.collect_from(FleetCollector(fleet.view))
    fleet.update_pools([view(pool())])
    labels = {"pool": "default/demo", "model": MODEL}
    assert metrics.registry.get_sample_value("cachefleet_pool_unserved_requests", labels) == 0
    assert value(metrics, "pool_replicas", pool="default/demo") == 1, "it is to have one, whose pod has no address yet"
    assert value(metrics, "pool_workers", pool="default/demo") == 0
    demand = fleet.demands.of(FLEET)
    with demand.holding(), demand.queueing(7), demand.queueing(2):
        assert value(metrics, "pool_unserved_requests", **labels) == 1
        assert value(metrics, "pool_queued_requests", pool="default/demo") == 2
        assert value(metrics, "pool_queued_blocks", pool="default/demo") == 9
    assert value(metrics, "pool_queued_blocks", pool="default/demo") == 0
    fleet.update_pools([])
    assert metrics.registry.get_sample_value("cachefleet_pool_unserved_requests", labels) is None


def test_demand_is_forgotten_with_the_pools_of_its_fleet() -> None:
    fleet = LiveFleet()
    fleet.update_pools([view(pool())])
    fleet.demands.of(FLEET).refused()
    fleet.update_pools([])
    fleet.update_pools([view(pool())])
    assert fleet.pool().unserved_requests == 0


def test_waiting_work_in_tokens_and_at_the_rate_of_its_pool() -> None:
    fleet = fleet_of("demo-0", "demo-1", "demo-2")
    fleet.report("demo-0", prefill_tokens_per_second=1000.0)
    fleet.report("demo-1", waiting=2, waiting_tokens=500)
    decision = fleet.route(MODEL, prompt := Prompt(tokens=3000), exclude=frozenset({"default/demo/demo-1"}))
    request = fleet.begin(decision, prompt)
    sent_to = fleet.worker(decision.worker)
    assert (sent_to.waiting_tokens, sent_to.backlog_seconds) == (3000, 3.0)
    other = fleet.worker("demo-1")
    assert (other.waiting_tokens, other.backlog_seconds) == (500, 0.5), "as its engine says; another has measured"
    request.finish()
    assert fleet.worker(decision.worker).backlog_seconds == 0


def test_nothing_is_said_of_seconds_where_nobody_has_measured() -> None:
    fleet = fleet_of("demo-0")
    fleet.report("demo-0", waiting_tokens=500)
    assert (fleet.worker().waiting_tokens, fleet.worker().backlog_seconds) == (500, None)


def test_a_pool_is_idle_since_its_last_request() -> None:
    fleet = fleet_of("demo-0")
    fleet.report("demo-0")
    fleet.now += 50
    assert fleet.pool().idle_seconds == 50, "since it is known"
    request = fleet.begin(fleet.route(MODEL, Prompt(tokens=10)), Prompt(tokens=10))
    fleet.now += 100
    assert fleet.pool().idle_seconds == 0
    request.finish()
    fleet.now += 20
    assert fleet.pool().idle_seconds == 20


def test_a_pool_whose_worker_is_still_starting_is_not_idle_once_its_requests_were_refused() -> None:
    """Else an autoscaler ends the first worker before it is ready, each time that somebody asks."""
    fleet = LiveFleet()
    fleet.update_pools([view(pool())])
    fleet.now += 7200
    fleet.demands.of(FLEET).refused()
    assert fleet.pool().idle_seconds == 0
    fleet.now += REFUSED_SECONDS + 40
    assert (fleet.pool().unserved_requests, fleet.pool().idle_seconds) == (0, REFUSED_SECONDS + 40)


@pytest.mark.parametrize(
    ("prefill", "decode", "lacks"), [("", "", True), ("p", "", True), ("", "d", True), ("p", "d", False)]
)
def test_a_fleet_of_roles_lacks_workers_until_it_has_one_of_each(prefill: str, decode: str, *, lacks: bool) -> None:
    engine = {"image": "vllm", "blockSize": 16, "maxModelLen": 4096, "kvTransfer": {"kv_connector": "NixlConnector"}}
    fleet = LiveFleet()
    views: list[PoolView] = [
        view(pool(role, role=role.title(), engine=engine), [name] if name else [])
        for role, name in (("prefill", prefill), ("decode", decode))
    ]
    fleet.update_pools(views)
    assert fleet.lacks_workers(MODEL) is lacks
    assert fleet.lacks_workers("unknown") is False
