"""Whether the load fitted the desired workers: which minutes are judged, by which row, and the share that is told."""

from typing import Any

import pytest

from cachefleet_controlplane.capacity.capacity_report import PoolCapacity
from cachefleet_controlplane.capacity.desired_fit import DesiredFit
from cachefleet_controlplane.capacity.desired_workers import HEADROOM, QUEUE_SECONDS, Desired, ScalingReason
from cachefleet_controlplane.capacity.pool_reuse import ReuseSums
from tests.controlplane.capacity.test_size_changes import report

RATE = 1000.0
"""Prompt tokens a second that a worker computes."""


def named(workers: int = 2, desired: int = 2, **changes: Any) -> PoolCapacity:
    """A pool that is asked so little that half of it may be computed."""
    return report(workers, desired=Desired(desired, ScalingReason.TOKENS), **({"asked_rate": 2000.0} | changes))


def looked(*looks: tuple[int, PoolCapacity], served: float = 0.5, requests: int = 10) -> DesiredFit:
    fit, sums = DesiredFit(), ReuseSums()
    for minute, one in looks:
        sums = sums.plus(ReuseSums(requests, 1000 * requests, int(served * 1000 * requests)))
        fit.step(one, sums, minute)
    return fit


def test_a_minute_at_the_desired_number_is_judged_when_it_is_over() -> None:
    fit = looked((1, named()), (1, named()), (2, named()), (3, named()))
    assert (fit.total.minutes, fit.total.met) == (2, 2)
    told = fit.shown()
    assert (told.minutes, told.fitted_minutes, told.fitted, told.missed_minutes) == (2, 2, 1.0, {})


@pytest.mark.parametrize(
    ("looks", "minutes"),
    [
        ([(1, named()), (3, named())], 0),
        ([(1, named(2, 3)), (2, named(2, 3))], 0),
        ([(1, named(2, 3)), (2, named(3, 3)), (3, named(3, 3))], 1),
        ([(1, named(2)), (1, named(3)), (1, named(2)), (2, named(2))], 0),
        ([(1, named(2)), (2, named(3))], 0),
        ([(1, named(2)), (2, named(2, 5))], 1),
        ([(1, report()), (2, report())], 0),
    ],
    ids=[
        "a gap",
        "other than desired",
        "once it is there",
        "not all the time",
        "changed",
        "until then",
        "none desired",
    ],
)
def test_which_minutes_are_judged(looks: list[tuple[int, PoolCapacity]], minutes: int) -> None:
    assert looked(*looks).total.minutes == minutes


def test_a_clock_that_is_set_back_begins_anew() -> None:
    fit = looked((90, named()), (91, named()), (10, named()), (11, named()))
    assert (fit.total.minutes, fit.shown().minutes) == (2, 1)


def test_a_minute_without_requests_is_not_judged() -> None:
    assert looked((1, named()), (2, named()), requests=0).total.minutes == 0


@pytest.mark.parametrize(
    ("within", "end", "served", "reasons"),
    [
        (named(), named(), 0.5, set()),
        (named(queued_requests=1), named(), 0.5, {"queue"}),
        (named(backlog_seconds=QUEUE_SECONDS + 0.1), named(), 0.5, {"queue"}),
        (named(), named(), 1 - HEADROOM + 0.001, set()),
        (named(), named(), 1 - HEADROOM - 0.001, {"tokens"}),
        (named(), named(objective_missed=True), 0.5, {"cache"}),
        (named(queued_requests=1), named(objective_missed=True), 0.0, {"queue", "tokens", "cache"}),
    ],
)
def test_why_it_did_not_fit(within: PoolCapacity, end: PoolCapacity, served: float, reasons: set[str]) -> None:
    fit = looked((1, named()), (1, within), (2, end), served=served)
    assert {str(reason) for reason in fit.total.misses} == reasons
    assert fit.total.met == (not reasons)
    told = fit.shown()
    assert (told.fitted, told.missed_minutes) == (float(not reasons), dict.fromkeys(reasons, 1))


def test_the_share_is_of_the_last_day() -> None:
    fit, sums = DesiredFit(), ReuseSums()
    for minute in range(1, 3001):
        sums = sums.plus(ReuseSums(1, 1000, 500 if minute > 1600 else 0))
        fit.step(named(), sums, minute)
    told = fit.shown()
    assert (told.minutes, told.fitted_minutes) == (24 * 60, 3000 - 1600)
    assert fit.total.minutes == 2999
