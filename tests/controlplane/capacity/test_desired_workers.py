"""How many workers a pool should have: the rule, its reasons, and that it does not sway with the load."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.capacity.desired_workers import (
    CALM,
    HEADROOM,
    HOLD_SECONDS,
    QUEUE_SECONDS,
    Desired,
    DesiredWorkers,
    PoolDemand,
    ScalingReason,
    wanted,
)
from cachefleet_controlplane.capacity.hit_curve import CurvePoint

RATE = 1000.0
DEMAND = PoolDemand(workers=2, rate=RATE)


class Load:
    """So many prompt tokens a second, of which each worker serves ``gain`` more from its cache, up to ``most``."""

    def __init__(self, asked: float, *, gain: float = 0.0, most: float = 0.9) -> None:
        self._asked = asked
        self._gain = gain
        self._most = most

    def __call__(self, workers: int) -> CurvePoint:
        ratio = min(self._most, self._gain * workers)
        return CurvePoint(
            workers=workers,
            budget_factor=1.0,
            hit_ratio=ratio,
            computed_tokens_per_second=(1 - ratio) * self._asked,
        )


def test_as_many_as_compute_the_load_with_headroom() -> None:
    assert wanted(DEMAND, Load(2.9 * HEADROOM * RATE)) == Desired(3, ScalingReason.TOKENS)
    assert wanted(DEMAND, Load(3.1 * HEADROOM * RATE)) == Desired(4, ScalingReason.TOKENS)


def test_caches_that_grow_with_the_workers_need_fewer_of_them() -> None:
    asked = 5.5 * HEADROOM * RATE
    assert wanted(DEMAND, Load(asked)).workers == 6
    assert wanted(DEMAND, Load(asked, gain=0.15)) == Desired(4, ScalingReason.TOKENS)


def test_one_is_enough_for_nothing() -> None:
    assert wanted(DEMAND, Load(0.0)) == Desired(1, ScalingReason.FLOOR)


def test_an_objective_in_reach_asks_for_its_caches_and_no_other_does() -> None:
    load = Load(0.5 * RATE, gain=0.2, most=0.7)
    assert wanted(replace(DEMAND, objective=0.6), load) == Desired(3, ScalingReason.CACHE)
    assert wanted(replace(DEMAND, objective=0.8), load) == Desired(1, ScalingReason.FLOOR)


@pytest.mark.parametrize("queue", [{"backlog_seconds": QUEUE_SECONDS + 0.1}, {"queued_requests": 1}])
def test_a_queue_asks_for_one_more(queue: dict[str, float]) -> None:
    demand = PoolDemand(workers=2, rate=RATE, **queue)  # type: ignore[arg-type]  # a count or seconds
    assert wanted(demand, Load(0.5 * RATE)) == Desired(3, ScalingReason.QUEUE)
    assert wanted(demand, Load(4.5 * HEADROOM * RATE)) == Desired(5, ScalingReason.TOKENS)


@given(asked=st.floats(0, 1e6), workers=st.integers(1, 64), gain=st.floats(0, 0.3))
def test_the_number_is_bounded_by_what_there_is(asked: float, workers: int, gain: float) -> None:
    found = wanted(PoolDemand(workers=workers, rate=RATE), Load(asked, gain=gain))
    assert 1 <= found.workers <= 2 * workers + 4


def test_it_rises_at_once_and_falls_when_less_was_wanted_for_long() -> None:
    desired, high, low = DesiredWorkers(), Load(3.9 * HEADROOM * RATE), Load(0.5 * HEADROOM * RATE)
    assert desired.at(-HOLD_SECONDS - 1, DEMAND, low).workers == 2, "who has just begun takes none away"
    assert desired.at(0.0, DEMAND, low).workers == 1
    assert desired.at(10.0, DEMAND, high).workers == 4
    four = replace(DEMAND, workers=4)
    assert desired.at(20.0, four, low).workers == 4
    assert desired.at(10.0 + HOLD_SECONDS, four, low).workers == 4
    assert desired.at(11.0 + HOLD_SECONDS, four, low).workers == 1


def test_a_load_that_sways_about_a_bound_raises_the_number_once() -> None:
    chance, desired, workers, changes = random.Random(1), DesiredWorkers(), 2, 0
    for second in range(0, 86_400, 15):
        asked = 2 * HEADROOM * RATE * chance.uniform(0.95, 1.05)
        found = desired.at(float(second), PoolDemand(workers=workers, rate=RATE), Load(asked)).workers
        changes += found != workers
        workers = found
    assert (workers, changes) == (3, 1)


def test_fewer_must_have_room_to_spare() -> None:
    desired = DesiredWorkers()
    near = Load(2 * HEADROOM * RATE * (CALM + 0.05))
    far = Load(2 * HEADROOM * RATE * (CALM - 0.05))
    assert desired.at(0.0, replace(DEMAND, workers=3), near).workers == 3
    assert desired.at(2 * HOLD_SECONDS, replace(DEMAND, workers=3), far).workers == 2
