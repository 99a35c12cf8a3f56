"""Why an engine that answers serves nothing, poll by poll."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.engine.suspensions import Suspension
from cachefleet_worker.agent.engines.engine_poll import LoadMetrics, Operations, RankStats
from cachefleet_worker.agent.suspension import UNPOLLED, Poll, Serving, step

STUCK_SECONDS = 60.0


def poll(at: float = 0.0, *, told: str | None = "", plugin: bool = True, work: int = 0, **fields: Any) -> Poll:
    """``told`` None: the engine did not answer the plugin."""
    stats = RankStats(boot="b", suspended=told, unfinished=work) if plugin and told is not None else None
    return Poll(at, fields.pop("metrics", LoadMetrics()), stats=stats, silent=plugin and told is None, **fields)


def after(*polls: Poll) -> Serving:
    serving = UNPOLLED
    for each in polls:
        serving = step(serving, each, stuck_seconds=STUCK_SECONDS)
    return serving


@pytest.mark.parametrize(
    ("shown", "suspended"),
    [
        (poll(), ""),
        (poll(told="paused"), Suspension.PAUSED),
        (poll(told="asleep"), Suspension.ASLEEP),
        (poll(told="of a later plugin"), "of a later plugin"),
        (poll(told="paused", operations=Operations(updating=True)), Suspension.UPDATING_WEIGHTS),
        (poll(operations=Operations(sleeping=True)), Suspension.ASLEEP),
        (poll(plugin=False, metrics=LoadMetrics(asleep=True)), Suspension.ASLEEP),
        (poll(plugin=False, paused=True), Suspension.PAUSED),
        (poll(plugin=False, paused=True, metrics=LoadMetrics(asleep=True)), Suspension.ASLEEP),
        # Another API server process was asked to wake it: the engine knows better than this one's gauge.
        (poll(metrics=LoadMetrics(asleep=True)), ""),
    ],
)
def test_it_is_told_by_the_engine_or_its_api_server(shown: Poll, suspended: str) -> None:
    assert after(shown).suspended == suspended


def test_what_the_engine_said_last_stands_while_it_answers_nothing() -> None:
    asleep = after(poll(told="asleep"), *(poll(at, told=None) for at in (1.0, 2.0)))
    assert asleep.suspended == Suspension.ASLEEP
    assert step(asleep, poll(3.0), stuck_seconds=STUCK_SECONDS).suspended == ""


def busy(at: float, done: int = 0, *, told: str | None = "") -> Poll:
    return poll(at, told=told, work=1, metrics=LoadMetrics(running=1, inter_token_count=done))


@pytest.mark.parametrize("told", ["", None])
def test_it_is_stuck_where_requests_wait_and_nothing_moves(told: str | None) -> None:
    still = [busy(at, told=told) for at in range(60)]
    assert after(*still).suspended == ""
    assert after(*still, busy(60.0, told=told)).suspended == Suspension.STUCK
    assert after(*still, busy(60.0, 1, told=told)).suspended == ""
    assert after(*still, busy(60.0, told=told), busy(61.0, 1, told=told)).suspended == ""


def test_gauges_that_outlive_their_requests_are_not_believed() -> None:
    """Of an engine without the plugin nothing else is known, and it would get no request that moves them."""
    stale = LoadMetrics(running=1, waiting=1)
    assert after(*(poll(float(at), metrics=stale) for at in range(0, 3600, 60))).suspended == ""
    assert after(*(poll(float(at), metrics=stale, plugin=False) for at in range(0, 3600, 60))).suspended == ""


def test_an_older_plugin_tells_all_requests() -> None:
    stats = RankStats(boot="b", running=1)
    polls = [Poll(float(at), LoadMetrics(), stats=stats) for at in (0, 60)]
    assert after(*polls).suspended == Suspension.STUCK


def test_one_that_was_idle_is_not_stuck_at_its_first_long_step() -> None:
    idle = [poll(float(at)) for at in range(0, 3600, 60)]
    long_step = [poll(3600.0 + at, told=None) for at in range(60)]
    assert after(*idle, *long_step).suspended == ""
    assert after(*idle, *long_step, poll(3660.0, told=None)).suspended == Suspension.STUCK


def test_idle_for_long_is_not_stuck_and_it_can_be_switched_off() -> None:
    assert after(*(poll(float(at), plugin=False) for at in range(0, 3600, 60))).suspended == ""
    serving = UNPOLLED
    for at in range(0, 3600, 60):
        serving = step(serving, busy(float(at)), stuck_seconds=0)
    assert serving.suspended == ""


@given(st.lists(st.tuples(st.floats(0.01, 20), st.integers(0, 2), st.booleans(), st.booleans()), max_size=40))
def test_only_a_standstill_as_long_as_the_bound_is_stuck(polls: list[tuple[float, int, bool, bool]]) -> None:
    serving, at, still = UNPOLLED, 0.0, None
    before: LoadMetrics | None = None
    for seconds, done, works, answers in polls:
        at += seconds
        metrics = LoadMetrics(running=int(works), inter_token_count=done)
        shown = poll(at, told="" if answers else None, work=int(works), metrics=metrics)
        serving = step(serving, shown, stuck_seconds=STUCK_SECONDS)
        has_work = works or not answers
        still = (at if still is None or metrics != before else still) if has_work else None
        before = metrics
        assert (serving.suspended == Suspension.STUCK) == (still is not None and at - still >= STUCK_SECONDS)
