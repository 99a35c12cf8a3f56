"""Several replicas in virtual time: what they share makes one fleet of them, and one alone is as ever."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from bench.replay_replicas import Work, played, spread
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
