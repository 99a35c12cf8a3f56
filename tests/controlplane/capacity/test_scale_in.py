"""The worker that goes first: the operator's order, and what is told to be lost."""

from collections.abc import Sequence

import pytest

from cachefleet_controlplane.capacity.hit_curve import HitCurve
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_controlplane.capacity.pool_reuse import ReuseCurve
from cachefleet_controlplane.capacity.scale_in import scale_in
from cachefleet_core.fleet_status.cache_worth import removal_values
from cachefleet_operator.reconcile.deletion_cost import ranks
from cachefleet_operator.status.pods import Pod
from tests.controlplane.fleet_views import unknown_worker, worker_status

WORKERS = [
    worker_status("demo-0", held_blocks=40, cache_value=30.4),
    worker_status("demo-1", held_blocks=50, cache_value=12.2),
    worker_status("demo-1", rank=1, held_blocks=10, cache_value=9.0),
    worker_status("demo-2", held_blocks=60, cache_value=25.0),
]


def requests(capacities: Sequence[float]) -> ReuseCurve:
    return ReuseCurve(100.0, 1000.0, 800.0, 400.0, 0.0, 10.0, [min(1.0, size / 600) for size in capacities])


def curve() -> HitCurve:
    pool = PoolMeasures(key="default/demo", workers=3, replicas=3, budget=100, total=200, used=0, held=300)
    return HitCurve(pool, requests)


def test_the_worker_of_least_worth_over_its_ranks_goes_with_what_no_other_has() -> None:
    one = scale_in(WORKERS, 16, curve())
    assert one is not None
    assert (one.worker, one.ready, one.held_blocks, one.lost_blocks, one.lost_tokens) == ("demo-1", True, 60, 21, 336)
    assert one.hit_ratio == pytest.approx(0.8 * 200 / 600, abs=1e-3)
    assert one.words == (
        "demo-1 goes first: its cache is worth least, 21 blocks (336 tokens) that no other worker has, "
        "and 27 % hits are left"
    )


def test_blocks_that_contracts_promise_count_more_and_the_operator_goes_by_the_same() -> None:
    promising = [*WORKERS[:2], worker_status("demo-1", rank=1, cache_value=9.0, promised_blocks=1), WORKERS[3]]
    values = removal_values(promising)
    assert values == pytest.approx({"demo-0": 30.4, "demo-1": 30.2, "demo-2": 25.0})
    one = scale_in(promising, 16, None)
    assert one is not None
    assert (one.worker, one.lost_blocks) == ("demo-2", 25)
    costs = ranks([Pod(name=name, uid=name) for name in values], values)
    assert one.worker == min(costs, key=costs.__getitem__)


def test_it_is_the_one_of_the_least_deletion_cost() -> None:
    pods = [Pod(name=name, uid=name) for name in ("demo-0", "demo-1", "demo-2")]
    costs = ranks(pods, {"demo-0": 30.4, "demo-1": 21.2, "demo-2": 25.0})
    one = scale_in(WORKERS, 16, None)
    assert one is not None
    assert one.worker == min(costs, key=costs.__getitem__)
    assert one.hit_ratio is None


def test_one_that_is_not_ready_goes_before_all_others() -> None:
    starting = unknown_worker("demo-9")
    one = scale_in([*WORKERS, worker_status("demo-9", ready=False, cache_value=900.0)], 16, curve())
    assert one is not None
    assert (one.worker, one.ready, one.lost_blocks, one.words) == (
        *("demo-9", False, 0),
        "demo-9 goes first: it is not ready",
    )
    assert starting.listed or scale_in([starting], 16, None) is None


def test_of_a_pool_of_one_worker_or_none_nobody_goes_first() -> None:
    assert scale_in(WORKERS[:1], 16, curve()) is None
    assert scale_in([], 16, None) is None
