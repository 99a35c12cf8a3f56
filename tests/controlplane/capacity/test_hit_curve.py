"""The curve of a pool: its losses as they are measured, and what it says of other sizes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cachefleet_controlplane.capacity.hit_curve import HitCurve
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_controlplane.capacity.pool_reuse import ReuseCurve

POOL = PoolMeasures(key="default/p", workers=4, replicas=4, budget=1000, total=8000, used=400, held=4400)


class Requests:
    """Requests whose hits grow evenly up to 10,000 blocks, from none to 0.8 of the prompts' tokens."""

    def __init__(self, served: float, elsewhere: float = 0.0) -> None:
        self._served = served
        self._elsewhere = elsewhere

    def __call__(self, capacities: Sequence[float]) -> ReuseCurve:
        shares = [min(1.0, capacity / 10_000) for capacity in capacities]
        return ReuseCurve(100.0, 1000.0, 800.0, 1000 * self._served, 1000 * self._elsewhere, 10.0, shares)


def test_what_is_served_today_is_what_the_curve_says_of_today() -> None:
    curve = HitCurve(POOL, Requests(served=0.3, elsewhere=0.02))
    assert curve.at(4).hit_ratio == pytest.approx(0.3, abs=1e-4)
    assert curve.error == pytest.approx(0.352 - 0.3)
    assert curve.at(4).computed_tokens_per_second == pytest.approx(70, abs=0.1)


def test_a_fleet_that_loses_nothing_is_one_cache_of_its_size() -> None:
    curve = HitCurve(POOL, Requests(served=0.352))
    served = [point.hit_ratio for point in curve.points([(1, 1.0), (4, 1.0), (8, 1.0), (4, 2.0), (4, 100.0)])]
    assert served == pytest.approx([0.112, 0.352, 0.672, 0.672, 0.8], abs=1e-4)


def test_losses_grow_with_the_number_of_workers_and_one_has_none() -> None:
    curve = HitCurve(POOL, Requests(served=0.332, elsewhere=0.02))
    assert curve.losses.share == pytest.approx(0, abs=1e-4)
    assert curve.at(1).hit_ratio == pytest.approx(0.112, abs=1e-4)
    assert curve.at(8).hit_ratio == pytest.approx(0.672 * (1 - 0.02 / 0.352 * (7 / 8) / (3 / 4)), abs=1e-4)


def test_losses_that_are_large_take_no_more_than_what_another_worker_brings() -> None:
    curve = HitCurve(replace(POOL, workers=2, held=2200), Requests(served=0.05))
    ratios = [point.hit_ratio for point in curve.points([(number, 1.0) for number in range(1, 9)])]
    assert ratios == sorted(ratios)


def test_workers_that_routing_leaves_empty_bring_nothing() -> None:
    curve = HitCurve(replace(POOL, held=3000), Requests(served=0.24))
    more, fewer, larger = curve.points([(8, 1.0), (3, 1.0), (4, 2.0)])
    assert more.hit_ratio == pytest.approx(0.24, abs=1e-3)
    assert fewer.hit_ratio == pytest.approx(0.24, abs=1e-3)
    assert larger.hit_ratio == pytest.approx(0.48, abs=1e-3)


def test_room_that_nobody_needs_is_no_sign_of_workers_left_empty() -> None:
    curve = HitCurve(replace(POOL, held=10_000, total=20_000, budget=10_000), Requests(served=0.8))
    assert curve.at(8).hit_ratio == pytest.approx(0.8)


def test_of_one_worker_only_copies_are_known() -> None:
    one = replace(POOL, workers=1, held=1400, duplicated=0.1)
    curve = HitCurve(one, Requests(served=0.05))
    assert curve.error == pytest.approx(0.08 * 1.4 * 0.9 - 0.05)
    assert curve.at(1).hit_ratio == pytest.approx(0.112)
    assert curve.at(2).hit_ratio == pytest.approx(0.8 * 0.24 * (1 - 0.05))


@pytest.mark.parametrize("served", [0.0, 0.01, 0.5, 1.0])
def test_ratios_are_ratios_and_rise_whatever_was_measured(served: float) -> None:
    curve = HitCurve(POOL, Requests(served, elsewhere=min(0.3, 1 - served)))
    ratios = [point.hit_ratio for point in curve.points([(4, factor) for factor in (0.25, 0.5, 1.0, 2.0, 4.0)])]
    assert ratios == sorted(ratios)
    assert all(0 <= ratio <= 1 for ratio in ratios)
