"""When a drain is over: polls, requests and time in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_worker.agent.duties.draining import SILENT_SECONDS, Draining

SETTLE = 2.0


def test_it_tells_what_is_left() -> None:
    drain = Draining(SETTLE)
    assert drain.left(1.0) is None
    drain.begin(10.0, 30.0)
    assert [drain.left(now) for now in (10.0, 15.0, 41.0)] == [30.0, 25.0, 0.0]
    drain.begin(16.0, 5.0)
    assert drain.left(16.0) == 5.0


def draining(*polls: tuple[float, bool], begin: float = 10.0, seconds: float = 30.0) -> Draining:
    """Begun at ``begin``, polled at these times; (time, idle)."""
    made = Draining(SETTLE)
    begun = False
    for now, idle in sorted(polls):
        if now >= begin and not begun:
            begun = made.begin(begin, seconds)
        made.observed(now, idle=idle)
    if not begun:
        made.begin(begin, seconds)
    return made


@pytest.mark.parametrize(
    ("polls", "now", "over"),
    [
        ((), 11.0, False),
        (((9.0, True),), 11.0, False),  # not asked since
        (((1.0, True), (11.0, True)), 11.0, False),  # long idle, not since the beginning
        (((9.0, True), (11.0, True), (12.0, True)), 12.0, True),
        (((11.0, True), (12.5, True)), 12.5, False),  # idle since 11 only
        (((11.0, True), (13.0, True)), 13.0, True),
        (((11.0, True), (12.0, False), (13.5, True)), 14.0, False),  # something came late
        (((11.0, True), (12.0, False), (13.0, True), (15.0, True)), 15.0, True),
        (((11.0, False), (39.0, False)), 39.9, False),
        (((11.0, False), (39.0, False)), 40.0, True),  # the time is up
    ],
)
def test_idle_for_a_while_or_the_time_is_up(polls: tuple[tuple[float, bool], ...], now: float, *, over: bool) -> None:
    assert draining(*polls).over(now, engine=True) is over


def test_nobody_asked() -> None:
    assert not Draining(SETTLE).over(1e9, engine=False)


def test_an_engine_that_is_gone_has_nothing_to_end() -> None:
    assert draining((9.0, False)).over(10.0, engine=False)


def test_asked_again_only_the_time_starts_over() -> None:
    made = draining((11.0, True), (13.0, True))
    assert not made.begin(20.0, 30.0)
    assert made.over(20.0, engine=True)
    assert made.until == 50.0


@given(st.lists(st.tuples(st.floats(0, 60), st.booleans()), max_size=20), st.floats(0, 60), st.floats(0, 60))
def test_it_ends_only_for_a_reason_and_then_stays_ended(
    polls: list[tuple[float, bool]], now: float, later: float
) -> None:
    made = draining(*(poll for poll in polls if poll[0] <= now), begin=10.0)
    if made.over(now, engine=True) and now < 40.0:
        since = [idle for at, idle in sorted(polls) if 10.0 < at <= now]
        assert since
        assert since[-1]
    if made.over(now, engine=True):
        assert made.over(now + later, engine=True)
    assert made.over(40.0 + later, engine=True)


@pytest.mark.parametrize(
    ("asked", "follows", "ends"),
    [
        (("a",), "a", False),  # the same life, seen again
        (("a",), "b", True),
        (("",), "a", True),  # asked before the engine was known
        ((None,), "b", False),
        ((None, "a"), "b", False),
        (("a", None), "b", False),
        (("a", "b"), "b", True),  # about the first that it was asked for
        ((), "b", False),
    ],
)
def test_another_life_of_the_engine_ends_a_drain_that_was_about_the_last(
    *, asked: tuple[str | None, ...], follows: str, ends: bool
) -> None:
    made = Draining(SETTLE)
    for epoch in asked:
        made.begin(10.0, 30.0, epoch=epoch)
    assert made.lives(follows) is ends
    assert (made.until is None) is (ends or not asked)
    assert made.begin(20.0, 30.0) is (ends or not asked)


def test_an_engine_that_hangs_has_nothing_to_end() -> None:
    made = draining((11.0, False), seconds=120.0)
    for now in range(12, 12 + int(SILENT_SECONDS)):
        made.unanswered(float(now))
        assert not made.over(float(now), engine=True)
    assert made.over(12.0 + SILENT_SECONDS, engine=True)
    made.observed(43.0, idle=False)
    assert not made.over(50.0, engine=True)


def test_what_was_idle_before_it_fell_silent_is_not_known_to_be() -> None:
    made = draining((11.0, True), seconds=120.0)
    made.unanswered(12.0)
    assert not made.over(14.0, engine=True)
    made.observed(15.0, idle=True)
    assert not made.over(15.0, engine=True)
