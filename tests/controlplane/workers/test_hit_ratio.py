"""A pool's hit ratio: what answers say was served, where they speak for what engines have looked up."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.workers.worth.pool_worth import PoolWorth
from tests.controlplane.fleet_views import measured
from tests.controlplane.gateway.harness import engine, front


@pytest.mark.parametrize(
    ("tokens", "min_tokens", "by", "value", "sampled"),
    [
        ({}, 0, "engines", None, True),
        ({"queried": 100, "hit": 40}, 0, "engines", 0.4, True),
        ({"queried": 100, "answered": 90, "served": 45}, 0, "answers", 0.5, True),
        ({"answered": 90, "served": 45}, 0, "answers", 0.5, True),
        ({"queried": 1000, "hit": 300, "answered": 99, "served": 99}, 0, "engines", 0.3, True),
        ({"queried": 1000, "answered": 100, "served": 50}, 0, "answers", 0.5, True),
        ({"queried": 1000, "answered": 200}, 500, "engines", 0.0, True),
        ({"queried": 300, "answered": 200}, 500, "answers", 0.0, False),
    ],
    ids=str,
)
def test_answers_count_where_they_speak_for_a_fair_part(
    tokens: dict[str, int], *, min_tokens: int, by: str, value: float | None, sampled: bool
) -> None:
    found = measured(0.5, min_tokens, **tokens)
    assert (found.by, found.value, found.sampled) == (by, value, sampled)


def test_counters_that_are_ahead_of_each_other_make_no_ratio_above_one() -> None:
    found = measured(queried=100, hit=130)
    assert (found.value, found.counted, found.hit_tokens) == (1.0, 1.0, 130)


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
    assert (pool.hit_ratio.value or 0) > 0.5
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
