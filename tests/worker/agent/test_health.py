from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_worker.agent.health import CORRUPTED, ERRING, Health, Reading, Tolerance, numbers, step

TOLERANCE = Tolerance(error_polls=3)


def after(*readings: Reading, tolerance: Tolerance = TOLERANCE) -> Health:
    health = Health()
    for reading in readings:
        health = step(health, reading, tolerance)
    return health


def test_a_corrupted_answer_withdraws_at_once_and_for_good() -> None:
    health = after(Reading(), Reading(corrupted=1))
    assert health.finding == CORRUPTED
    assert step(health, Reading(answered=100), TOLERANCE).finding == CORRUPTED


def test_corruption_from_before_the_agent_came_counts() -> None:
    assert after(Reading(corrupted=1)).finding == CORRUPTED
    assert after(Reading(corrupted=2), tolerance=Tolerance(corrupted=2)).finding == ""


def test_errors_from_before_do_not_count() -> None:
    assert after(Reading(errors=50), Reading(errors=50)).bad_polls == 0


@pytest.mark.parametrize(
    ("errors", "answered", "finding"),
    [
        ([0, 1, 2, 3], [5, 5, 5, 5], ERRING),
        ([0, 1, 1, 1, 2, 2, 3], [5] * 7, ERRING),  # nothing happened in between: nothing was proven
        ([0, 1, 2, 3], [5, 5, 6, 6], ""),
        ([0, 9, 9, 9, 9], [5] * 5, ""),
        ([0, 1, 2, 2, 3, 4], [0, 0, 0, 1, 1, 1], ""),
        ([0, 1, 2, 3], [0, 1, 2, 3], ""),
    ],
)
def test_errors_without_an_answer_in_between(errors: list[int], answered: list[int], finding: str) -> None:
    readings = [Reading(errors=e, answered=a) for e, a in zip(errors, answered, strict=True)]
    assert after(*readings).finding == finding


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=30))
def test_erring_means_so_many_polls_with_errors_since_the_last_answer(steps: list[tuple[int, int]]) -> None:
    readings, errors, answered, streak, expected = [Reading()], 0, 0, 0, False
    for more_errors, more_answers in steps:
        errors, answered = errors + more_errors, answered + more_answers
        streak = 0 if more_answers else streak + bool(more_errors)
        expected = expected or streak >= TOLERANCE.error_polls
        readings.append(Reading(errors=errors, answered=answered))
    assert (after(*readings).finding == ERRING) is expected


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        ([], True),
        ([-0.1, 0.0, -30.0], True),
        ([12.3], True),
        ([float("inf")], False),
        ([-0.1, None], False),
        ([float("nan")], False),
        ([float("-inf")], False),
    ],
)
def test_numbers(logprobs: list[float | None], expected: bool) -> None:  # noqa: FBT001 (a row)
    assert numbers(logprobs) is expected
