"""A pool's hit ratio: what answers say was served, where they speak for what engines have looked up."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_controlplane.workers.views import HitRatio
from cachefleet_controlplane.workers.worth.pool_worth import PoolWorth
from tests.controlplane.gateway.harness import engine, front


def ratio(**tokens: int) -> HitRatio:
    given: dict[str, Any] = {"queried_tokens": 0, "hit_tokens": 0} | tokens
    return HitRatio(window_seconds=600, objective=0.5, sampled_at=0.0, **given)


@pytest.mark.parametrize(
    ("found", "by_answers", "value", "sampled"),
    [
        (ratio(), False, None, True),
        (ratio(queried_tokens=100, hit_tokens=40), False, 0.4, True),
        (ratio(queried_tokens=100, answered_tokens=90, served_tokens=45), True, 0.5, True),
        (ratio(answered_tokens=90, served_tokens=45), True, 0.5, True),
        (ratio(queried_tokens=1000, hit_tokens=300, answered_tokens=99, served_tokens=99), False, 0.3, True),
        (ratio(queried_tokens=1000, answered_tokens=100, served_tokens=50), True, 0.5, True),
        (ratio(queried_tokens=1000, answered_tokens=200, min_tokens=500), False, 0.0, True),
        (ratio(queried_tokens=300, answered_tokens=200, min_tokens=500), True, 0.0, False),
    ],
    ids=str,
)
def test_answers_count_where_they_speak_for_a_fair_part(
    found: HitRatio, *, by_answers: bool, value: float | None, sampled: bool
) -> None:
    assert (found.by_answers, found.ratio, found.sampled) == (by_answers, value, sampled)


async def test_hits_that_the_engines_counters_do_not_know_are_seen() -> None:
    """As of a connector: the counter of hits stays 0, and answers say what was cached."""
    async with engine() as worker, front([worker]) as gate:
        gate.report(0, prefix_queries=0, prefix_hits=0)
        for _ in range(4):
            await gate.chat("the same long words " * 20)
        gate.report(0, prefix_queries=1000, prefix_hits=0)
        (pool,) = gate.fleet.view().pools
        served = [record.cached_tokens or 0 for record in gate.records]
    assert pool.hit_ratio.by_answers
    assert pool.hit_ratio.served_tokens == sum(served) > 0
    assert (pool.hit_ratio.ratio or 0) > 0.5
    assert pool.hit_ratio.counted in {0.0, None}


async def test_prompts_that_nobody_looked_for_are_of_no_ratio() -> None:
    async with engine() as worker, front([worker]) as gate:
        await gate.post("/v1/completions", {"model": "fake", "prompt": "x" * 99, "max_tokens": 2, "echo": True})
        await gate.post("/v1/completions", {"model": "fake", "prompt": ["x" * 99, "y"], "max_tokens": 2})
        (pool,) = gate.fleet.view().pools
    assert pool.hit_ratio.answered_tokens == 0


def test_what_is_looked_up_again_is_taken_off_and_never_more_than_there_was() -> None:
    worth = PoolWorth()
    worth.reported(1000, 300, 0.0)
    worth.reported(-200, -150, 0.0)
    assert (worth._asked, worth._computed) == (800, 650)
    worth.reported(-2000, 0, 0.0)
    assert (worth._asked, worth._computed) == (0, 0)
