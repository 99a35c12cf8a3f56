"""The table of a request's legs."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.legs import (
    TABLE,
    Action,
    IllegalOutcomeError,
    Outcome,
    Progress,
    State,
    step,
)

MAX_LEGS = 3
LAST_ACTIONS = {Action.DELIVER, Action.REFUSE, Action.FAIL, Action.BREAK, Action.CLOSE}


def waiting(worker: str = "a", **changes: object) -> Progress:
    return replace(Progress(state=State.WAITING, legs=1, worker=worker), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "action"),
    [
        (Outcome.ANSWERED, Action.DELIVER),
        (Outcome.FIRST_EVENT, Action.RELAY),
        (Outcome.SILENT, Action.FAIL),
        (Outcome.OVERSIZED, Action.FAIL),
        (Outcome.UNREACHABLE, Action.CHOOSE),
        (Outcome.SERVER_ERROR, Action.CHOOSE),
        (Outcome.LOST, Action.CHOOSE),
    ],
)
def test_a_leg_that_nobody_saw_may_be_tried_elsewhere(outcome: Outcome, action: Action) -> None:
    assert step(waiting(), outcome, max_legs=MAX_LEGS)[1] is action


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.SILENT, Outcome.OVERSIZED])
def test_a_stream_that_the_client_has_seen_is_ended_not_retried(outcome: Outcome) -> None:
    after, action = step(Progress(state=State.RELAYING, legs=1), outcome, max_legs=MAX_LEGS)
    assert (after.state, action) == (State.ENDED, Action.BREAK)


def test_a_worker_that_cannot_be_reached_is_not_asked_again() -> None:
    after, _ = step(waiting(), Outcome.UNREACHABLE, max_legs=MAX_LEGS)
    assert after.excluded == {"a"}


def test_a_lost_connection_gives_the_worker_a_second_try_and_no_third() -> None:
    once, _ = step(waiting(), Outcome.LOST, max_legs=MAX_LEGS)
    assert not once.excluded
    assert once.suspects == {"a"}
    again, _ = step(once, Outcome.PLACED, worker="a", max_legs=MAX_LEGS)
    twice, _ = step(again, Outcome.LOST, max_legs=MAX_LEGS)
    assert twice.excluded == {"a"}


def test_when_nobody_is_left_the_worker_s_own_error_is_the_answer() -> None:
    failed, _ = step(waiting(), Outcome.SERVER_ERROR, max_legs=MAX_LEGS)
    assert step(failed, Outcome.NO_WORKER, max_legs=MAX_LEGS)[1] is Action.DELIVER
    unreachable, _ = step(waiting(), Outcome.UNREACHABLE, max_legs=MAX_LEGS)
    assert step(unreachable, Outcome.NO_WORKER, max_legs=MAX_LEGS)[1] is Action.REFUSE


def test_attempts_are_bounded() -> None:
    after, action = step(waiting(legs=MAX_LEGS), Outcome.UNREACHABLE, max_legs=MAX_LEGS)
    assert (after.state, action) == (State.ENDED, Action.REFUSE)


@pytest.mark.parametrize(("state", "outcome"), list(product(State, Outcome)))
def test_what_the_table_does_not_have_raises(state: State, outcome: Outcome) -> None:
    if outcome not in TABLE[state]:
        with pytest.raises(IllegalOutcomeError):
            step(Progress(state=state), outcome, worker="a", max_legs=MAX_LEGS)


@given(st.lists(st.sampled_from(list(Outcome)), max_size=40), st.sampled_from(["a", "b", "c"]), st.integers(1, 5))
def test_every_course_ends_and_never_asks_too_often(outcomes: list[Outcome], worker: str, max_legs: int) -> None:
    progress, action = Progress(), Action.CHOOSE
    for outcome in outcomes:
        if outcome not in TABLE[progress.state] or (outcome is Outcome.PLACED and worker in progress.excluded):
            continue
        progress, action = step(progress, outcome, worker=worker, max_legs=max_legs)
        assert progress.legs <= max_legs
        assert (progress.state is State.ENDED) == (action in LAST_ACTIONS)
        assert (action is Action.DELIVER) <= (outcome is Outcome.ANSWERED or progress.answered)
