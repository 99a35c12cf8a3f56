"""What is worth doing to a pool: each option with its numbers, by its gain, the curve's error and the load."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.capacity.advice import MOST_ERROR, Advised, advise, mib
from cachefleet_controlplane.capacity.desired_workers import Desired, ScalingReason
from cachefleet_controlplane.capacity.hit_curve import HitCurve
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_controlplane.capacity.pool_reuse import ReuseCurve
from cachefleet_core.fleet_status.capacity_facts import (
    FEWER_WORKERS,
    LESS_BUDGET,
    MORE_BUDGET,
    MORE_WORKERS,
    NOTHING,
    UNKNOWN,
    WORTH,
    AdviceFacts,
)

POOL = PoolMeasures(
    key="default/p",
    workers=2,
    replicas=2,
    budget=8192,
    total=40_000,
    used=0,
    held=16_384,
    budget_mib=8192,
    block_mib=1.0,
    most_budget=32_768,
    prefill_rate=1000.0,
    rate_measured=True,
    asked_rate=10_000.0,
)
"""Two workers with 8 GiB of idle blocks each; what they are asked for is ten workers' prefill, were nothing cached."""


class Requests:
    """Prompts of which ``most`` is served by caches of ``whole`` blocks or more, and in proportion by smaller ones."""

    def __init__(self, whole: float, *, most: float = 0.9, served: float | None = None, elsewhere: float = 0.0) -> None:
        self._whole = whole
        self._most = most
        self._served = served if served is not None else most * min(1.0, POOL.own / whole)
        self._elsewhere = elsewhere

    def __call__(self, capacities: Sequence[float]) -> ReuseCurve:
        shares = [min(1.0, capacity / self._whole) for capacity in capacities]
        return ReuseCurve(100.0, 1e6, 1e6 * self._most, 1e6 * self._served, 1e6 * self._elsewhere, 60.0, shares)


def told(requests: Requests, *, desired: Desired | None = None, **changes: Any) -> Advised:
    pool = replace(POOL, **changes)
    return advise(pool, HitCurve(pool, requests), desired)


def of(found: Advised, action: str) -> AdviceFacts:
    [one] = [each for each in found.items if each.action == action]
    return one


def test_a_worker_that_saves_its_own_work_is_worth_it_and_so_is_the_budget_that_does_the_same() -> None:
    found = told(Requests(49_152))
    more = of(found, MORE_WORKERS)
    assert (found.verdict, found.words) == (WORTH, more.words)
    assert more.words == (
        "a third worker: 30 -> 45 % hits, saves 1.5 workers of prefill; 4 GiB more budget of each device does the same"
    )
    assert (more.worth, more.size.workers) == (True, 3)
    assert more.points == pytest.approx(15)
    assert more.saved_workers == pytest.approx(1.5)
    assert more.saved_tokens_per_second == pytest.approx(1500)
    budget = of(found, MORE_BUDGET)
    assert budget.words == "4 GiB more budget of each device: 30 -> 45 % hits, saves 1.5 workers of prefill"
    assert (budget.worth, budget.size.budget_mib, budget.size.workers) == (True, 12_288, 2)


def test_a_worker_that_saves_less_than_itself_is_not_worth_it_but_memory_that_lies_idle_is() -> None:
    found = told(Requests(49_152), asked_rate=5000.0)
    assert not of(found, MORE_WORKERS).worth
    assert found.items[0].action == MORE_BUDGET
    assert found.words.startswith("4 GiB more budget of each device: 30 -> 45 % hits, saves 0.8 workers")


def test_load_that_asks_for_workers_is_a_reason_of_its_own() -> None:
    found = told(Requests(49_152), asked_rate=2000.0, desired=Desired(4, ScalingReason.TOKENS))
    more = of(found, MORE_WORKERS)
    assert (found.words, more.worth, more.size.workers) == (more.words, True, 4)
    assert more.words.startswith("2 more workers: 30 -> 60 % hits, saves 0.6 workers of prefill; 8 GiB more budget")
    assert more.words.endswith("; the load asks for it: it takes more than 70% of what the workers compute")


def test_where_all_is_cached_nothing_is_worth_doing_and_what_a_smaller_budget_gives_back_is_told() -> None:
    found = told(Requests(4096))
    assert found.verdict == NOTHING
    assert found.words.startswith("nothing is worth doing: a third worker: 90.0 -> 90.0 % hits")
    less = of(found, LESS_BUDGET)
    assert (less.worth, less.size.budget_mib) == (False, 2048)
    assert "6 GiB less budget of each device" in less.words


def test_a_budget_that_nobody_needs_is_given_back_where_running_requests_lack_room() -> None:
    found = told(Requests(4096), queued_requests=3)
    assert (found.verdict, found.items[0].action) == (WORTH, LESS_BUDGET)
    assert found.words.endswith("running requests lack that room")


def test_a_gain_below_the_curve_s_own_error_is_none() -> None:
    exact, off = (told(Requests(200_000, served=served)) for served in (0.0737, 0.0337))
    assert of(exact, MORE_WORKERS).points == pytest.approx(3.7, abs=0.1)
    assert "does the same" in of(exact, MORE_WORKERS).words
    assert "does the same" not in of(off, MORE_WORKERS).words
    assert not of(off, MORE_WORKERS).worth


def test_a_curve_that_is_far_off_says_nothing() -> None:
    found = told(Requests(16_384, served=0.9 - MOST_ERROR - 0.01))
    assert (found.verdict, found.items) == (UNKNOWN, ())
    assert found.words == "not known yet: the curve is +16.0 points off what was served"


def test_one_worker_less_is_told_with_what_it_costs() -> None:
    found = told(Requests(49_152), asked_rate=500.0, desired=Desired(1, ScalingReason.FLOOR))
    less = of(found, FEWER_WORKERS)
    assert (less.worth, less.size.workers) == (True, 1)
    assert less.points == pytest.approx(-15)
    assert less.words == "one worker less: 30 -> 15 % hits, takes 0.1 workers of prefill more; the load would fit"


@pytest.mark.parametrize("changes", [{"budget_mib": 0}, {"block_mib": 0.0}, {"budget": 0, "total": 8192}])
def test_where_no_budget_bounds_the_caches_none_is_told(changes: dict[str, Any]) -> None:
    actions = {one.action for one in told(Requests(49_152), **changes).items}
    assert not actions & {MORE_BUDGET, LESS_BUDGET}


def test_a_budget_grows_no_further_than_running_requests_allow() -> None:
    found = told(Requests(200_000), most_budget=9000)
    assert of(found, MORE_BUDGET).size.budget_mib <= 9000
    assert "does the same" not in of(found, MORE_WORKERS).words
    assert MORE_BUDGET not in {one.action for one in told(Requests(200_000), most_budget=8192).items}


def test_prices_of_devices_weigh_in() -> None:
    more = of(told(Requests(49_152), worker_hour=4.0), MORE_WORKERS)
    assert more.worth_per_hour == pytest.approx(4 * (1.5 - 1))
    assert more.words.split(";")[0].endswith("saves 1.5 workers of prefill, 2.00 an hour net of its devices")
    assert of(told(Requests(49_152)), MORE_WORKERS).worth_per_hour is None


def test_without_a_measured_rate_no_worker_is_promised() -> None:
    more = of(told(Requests(49_152), rate_measured=False), MORE_WORKERS)
    assert (more.saved_workers, more.worth) == (None, False)
    assert more.words.startswith("a third worker: 30 -> 45 % hits;")


@given(
    whole=st.floats(100, 1e6),
    workers=st.integers(1, 40),
    budget=st.integers(1, 40_000),
    served=st.floats(0, 0.9),
    wanted=st.integers(1, 90),
)
def test_whatever_is_measured_advice_is_of_sizes_that_can_be(
    whole: float, workers: int, budget: int, served: float, wanted: int
) -> None:
    changes: dict[str, Any] = {"workers": workers, "budget": budget, "budget_mib": budget}
    found = told(Requests(whole, served=served), desired=Desired(wanted, ScalingReason.TOKENS), **changes)
    for one in found.items:
        assert 1 <= one.size.workers <= max(wanted, workers + 1)
        assert 0 <= one.size.budget_mib <= max(budget, POOL.most_budget)
        assert 0 <= one.size.hit_ratio <= 1
    assert [one.worth for one in found.items] == sorted((one.worth for one in found.items), reverse=True)
    assert (found.verdict == WORTH) == any(one.worth for one in found.items)


@pytest.mark.parametrize(("amount", "words"), [(8192, "8 GiB"), (1536, "1.5 GiB"), (512, "512 MiB")])
def test_memory_in_words(amount: int, words: str) -> None:
    assert mib(amount) == words
