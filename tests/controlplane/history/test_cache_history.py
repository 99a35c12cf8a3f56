"""The last hour, in steps: what ended, what was sampled, and no more than that is kept."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.history.cache_history import (
    FLEET,
    HOUR_STEPS,
    STEP_SECONDS,
    Answered,
    CacheHistory,
    Gauges,
)
from cachefleet_controlplane.routing.lost_tokens import LostCause

NOW = 1_800_000_000.0
HOUR = HOUR_STEPS * STEP_SECONDS
FIRST, LAST = LostCause.FIRST_SEEN, LostCause.LAST_BLOCK


POOL = "default/demo"


def ended(ttft_seconds: float | None = None, **changes: Any) -> Answered:
    own: dict[str, Any] = {"prompt_tokens": 100, "served_tokens": 64, "lost": {FIRST: 32, LAST: 4}}
    told = {} if ttft_seconds is None else {"ttft_sum": ttft_seconds, "ttft_count": 1}
    return Answered(requests=1, **own | told | changes)


def test_what_ends_within_one_step_is_summed() -> None:
    history = CacheHistory()
    for second, ttft in ((0.0, 0.5), (9.9, 1.5), (9.9, None)):
        history.add(POOL, ended(ttft), NOW + second)
    history.add("default/other", ended(), NOW + 10)
    [step] = history.steps("default/demo", NOW + 11)
    assert (step.at, step.requests, step.prompt_tokens, step.served_tokens) == (NOW, 3, 300, 192)
    assert step.lost == {FIRST: 96, LAST: 12}
    assert step.ttft_seconds == 1.0
    assert [one.requests for one in history.steps(FLEET, NOW + 11)] == [3, 1], "of all pools together"


def test_failed_requests_are_counted_beside_answered_ones() -> None:
    history = CacheHistory()
    history.add(POOL, ended(), NOW)
    for pool in ("default/demo", FLEET):  # to no pool came who found none
        history.fail(pool, NOW)
    assert [(step.requests, step.failed) for step in history.steps("default/demo", NOW)] == [(1, 1)]
    assert [(step.requests, step.failed) for step in history.steps(FLEET, NOW)] == [(1, 2)]


def test_an_hour_is_kept() -> None:
    history = CacheHistory()
    for number in range(2 * HOUR_STEPS):
        history.add(POOL, ended(), NOW + number * STEP_SECONDS)
    end = NOW + (2 * HOUR_STEPS - 1) * STEP_SECONDS
    steps = history.steps(FLEET, end)
    assert len(steps) == HOUR_STEPS
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert steps[0].at == end - HOUR + STEP_SECONDS
    assert {step.requests for step in steps} == {1}
    assert len(history.steps(FLEET, end + HOUR / 2)) == HOUR_STEPS / 2
    assert history.steps(FLEET, end + HOUR) == []


def test_load_and_blocks_are_those_of_the_last_sample() -> None:
    history = CacheHistory()
    for running in (1, 2):
        history.sample({"default/demo": Gauges(running=running), FLEET: Gauges(running=running + 5)}, NOW + running)
    [step] = history.steps("default/demo", NOW + 3)
    [whole] = history.steps(FLEET, NOW + 3)
    assert step.gauges is not None
    assert whole.gauges is not None
    assert (step.gauges.running, whole.gauges.running) == (2, 7)
    assert step.ttft_seconds is None


def test_a_clock_that_is_set_back_costs_its_steps_and_no_more() -> None:
    history = CacheHistory()
    history.add(POOL, ended(), NOW)
    history.add(POOL, ended(), NOW - 100)
    assert [step.requests for step in history.steps(FLEET, NOW - 100)] == [1], "what is to come is not shown"
    assert len(history.steps(FLEET, NOW)) == 2


def test_more_pools_than_are_kept_do_not_take_each_other_s_hour() -> None:
    history, pools = CacheHistory(pools=4), [f"default/p{number}" for number in range(6)]
    for step in range(9):
        now = NOW + step * STEP_SECONDS
        history.sample(dict.fromkeys((*reversed(pools[4:]), *pools[:4], FLEET), Gauges(running=1)), now)
        for pool in pools:
            history.add(pool, ended(), now)
    lengths = sorted(len(history.steps(pool, now)) for pool in pools)
    assert lengths == [0, 0, 9, 9, 9, 9]
    assert {step.requests for step in history.steps(FLEET, now)} == {6}


def test_pools_are_bounded_and_those_long_unheard_dropped() -> None:
    history = CacheHistory(pools=2)
    for number in range(5):
        history.add(f"default/p{number}", ended(), NOW + number * STEP_SECONDS)
    heard = [number for number in range(5) if history.steps(f"default/p{number}", NOW + 50)]
    assert heard == [3, 4]
    assert sum(step.requests for step in history.steps(FLEET, NOW + 50)) == 5
    history.sample({}, NOW + HOUR + 35)
    history.add(POOL, ended(), NOW + HOUR + 35)
    assert len(history._rings) == 3, "the fleet's, the last pool's, and the new one's"


@given(st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 500), st.integers(0, 500))))
def test_the_sum_holds_in_every_step(answers: list[tuple[int, int, int]]) -> None:
    history = CacheHistory()
    for second, served, lost in answers:
        one = ended(prompt_tokens=served + lost, served_tokens=served, lost={FIRST: lost // 2, LAST: lost - lost // 2})
        history.add(POOL, one, NOW + second)
    for step in history.steps("default/demo", NOW + 8000):
        assert sum(step.lost.values()) == step.prompt_tokens - step.served_tokens
