"""Several replicas in virtual time: what they share makes one fleet of them, and one alone is as ever."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from bench.replay_replicas import Work, played, rush, spread
from bench.replay_result import PolicyResult
from bench.replay_run import Replay
from bench.replay_work import line, requests, synthetic
from cachefleet_controlplane.simulation.fleet_setup import Setup

SETUP = Setup(workers=6, blocks=400, prefill_tokens_per_second=2000.0, model_len=2048)
WORK = synthetic(conversations=40, turns=12, gap=0.02)


def run(replicas: int, late: float | None) -> PolicyResult:
    return Replay(WORK, replace(SETUP, replicas=replicas, share_seconds=late), "cacheAware").run()


def test_two_that_share_are_as_one_and_two_that_do_not_are_not() -> None:
    """The queues that requests meet, and how many requests each worker gets."""
    one, shared, apart = run(1, None), run(2, 0.02), run(2, None)
    assert fmean(shared.backlogs) < 1.25 * fmean(one.backlogs)
    assert fmean(apart.backlogs) > 1.6 * fmean(one.backlogs)
    for theirs, ours in zip(sorted(shared.served), sorted(one.served), strict=True):
        assert abs(theirs - ours) <= 0.1 * ours
    assert abs(shared.hit_ratio - one.hit_ratio) < 0.02


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_prefix_that_all_ask_for_at_once_is_spread_as_by_one_replica() -> None:
    """200 requests a second for 8,192 tokens on eight workers, known elsewhere after 50 ms: see docs/gateway.md.

    With two replicas each worker gets as many requests as of one, within a tenth. With eight none gets more, and only
    the busiest fewer: one replica sends it the most, and several begin a copy in the same moment. What sharing is for
    is the queue that requests meet.
    """
    work = rush()
    one, two, eight = (figures.run for figures in played(work, [1, 2, 8], ["50 ms"]))
    (apart,) = (figures.run for figures in played(work, [8], ["reports"]))
    usual = sorted(one.served)
    assert sorted(two.served) == pytest.approx(usual, rel=0.1)
    assert sorted(eight.served)[:-1] == pytest.approx(usual[:-1], rel=0.1)
    assert max(eight.served) <= usual[-1]
    assert abs(eight.hit_ratio - one.hit_ratio) < 0.001
    assert fmean(two.backlogs) < fmean(eight.backlogs) < 0.5 * fmean(apart.backlogs)


def test_alone_nothing_is_shared_and_all_decisions_are_the_same() -> None:
    some = WORK[:150]
    one, same = (Replay(some, replace(SETUP, share_seconds=late), "cacheAware").run() for late in (None, 0.02))
    assert (one.workers, one.hits, one.first_token) == (same.workers, same.hits, same.first_token)


def test_each_replica_and_delay_is_played() -> None:
    work = Work(WORK[:60], SETUP, [3, 4])
    figures = [*played(work, [1, 3], ["50 ms", "reports"])]
    assert [(one.replicas, one.known) for one in figures] == [(1, ""), (3, "50 ms"), (3, "reports")]
    assert {len(one.first_tokens) for one in figures} == {2}
    assert all(sum(one.run.served) == 60 and one.busiest >= 1 for one in figures)


def test_requests_of_one_moment_are_spread_until_the_next() -> None:
    work = requests([line(at, [number], 1, 1) for number, at in enumerate([0.0, 0.0, 0.0, 3.0, 4.0, 4.0])])
    assert [one.at for one in spread(work)] == [0.0, 1.0, 2.0, 3.0, 4.0, 4.5]
