"""The table of a request's attempts."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cachefleet_controlplane.gateway.retry.retry_state_machine import (
    TABLE,
    Action,
    IllegalOutcomeError,
    Progress,
    State,
    step,
)
from cachefleet_controlplane.gateway.send.outcome import Outcome

MAX_ATTEMPTS = 3
LAST_ACTIONS = {Action.DELIVER, Action.REFUSE, Action.FAIL, Action.BREAK, Action.CLOSE}


def waiting(worker: str = "a", **changes: object) -> Progress:
    return replace(Progress(state=State.WAITING, attempts=1, worker=worker), **changes)


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
        (Outcome.KEY_REFUSED, Action.CHOOSE),
        (Outcome.STALLED, Action.CHOOSE),
    ],
)
def test_an_attempt_that_nobody_saw_may_be_tried_elsewhere(outcome: Outcome, action: Action) -> None:
    assert step(waiting(), outcome, max_attempts=MAX_ATTEMPTS)[1] is action


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.SILENT, Outcome.OVERSIZED])
def test_a_stream_that_the_client_has_seen_is_ended_not_retried(outcome: Outcome) -> None:
    after, action = step(Progress(state=State.RELAYING, attempts=1), outcome, max_attempts=MAX_ATTEMPTS)
    assert (after.state, action) == (State.ENDED, Action.BREAK)


def test_a_worker_that_cannot_be_reached_is_not_asked_again() -> None:
    after, _ = step(waiting(), Outcome.UNREACHABLE, max_attempts=MAX_ATTEMPTS)
    assert after.excluded == {"a"}


def test_a_lost_connection_gives_the_worker_a_second_try_and_no_third() -> None:
    once, _ = step(waiting(), Outcome.LOST, max_attempts=MAX_ATTEMPTS)
    assert not once.excluded
    assert once.suspects == {"a"}
    again, _ = step(once, Outcome.PLACED, worker="a", max_attempts=MAX_ATTEMPTS)
    twice, _ = step(again, Outcome.LOST, max_attempts=MAX_ATTEMPTS)
    assert twice.excluded == {"a"}


def test_when_nobody_is_left_the_worker_s_own_error_is_the_answer() -> None:
    failed, _ = step(waiting(), Outcome.SERVER_ERROR, max_attempts=MAX_ATTEMPTS)
    assert step(failed, Outcome.NO_WORKER, max_attempts=MAX_ATTEMPTS)[1] is Action.DELIVER
    unreachable, _ = step(waiting(), Outcome.UNREACHABLE, max_attempts=MAX_ATTEMPTS)
    assert step(unreachable, Outcome.NO_WORKER, max_attempts=MAX_ATTEMPTS)[1] is Action.REFUSE


def test_a_refused_key_is_never_the_clients_answer() -> None:
    refused, _ = step(waiting(), Outcome.KEY_REFUSED, max_attempts=MAX_ATTEMPTS)
    assert refused.excluded == {"a"}
    assert step(refused, Outcome.NO_WORKER, max_attempts=MAX_ATTEMPTS)[1] is Action.FAIL
    again, _ = step(refused, Outcome.PLACED, worker="b", max_attempts=MAX_ATTEMPTS)
    assert step(again, Outcome.ANSWERED, max_attempts=MAX_ATTEMPTS)[1] is Action.DELIVER
    lost, _ = step(again, Outcome.UNREACHABLE, max_attempts=MAX_ATTEMPTS)
    assert step(lost, Outcome.NO_WORKER, max_attempts=MAX_ATTEMPTS)[1] is Action.REFUSE
    assert step(waiting(attempts=MAX_ATTEMPTS), Outcome.KEY_REFUSED, max_attempts=MAX_ATTEMPTS)[1] is Action.FAIL


def test_a_key_that_an_earlier_worker_refused_is_not_blamed_for_what_came_after() -> None:
    refused, _ = step(waiting(), Outcome.KEY_REFUSED, max_attempts=MAX_ATTEMPTS)
    assert step(refused, Outcome.REFUSED, max_attempts=MAX_ATTEMPTS)[1] is Action.REFUSE  # another one had no room
    for after in ([Outcome.GATE_REFUSED], [Outcome.HANDED_BACK, Outcome.RESUMABLE]):
        progress, _ = step(refused, Outcome.PLACED, worker="b", max_attempts=MAX_ATTEMPTS)
        for outcome in after:
            progress, _ = step(progress, outcome, max_attempts=MAX_ATTEMPTS)
        assert step(progress, Outcome.NO_WORKER, max_attempts=MAX_ATTEMPTS)[1] is Action.REFUSE


def test_who_finds_no_room_waits_and_is_then_placed_or_refused() -> None:
    queued, action = step(Progress(), Outcome.NO_ROOM, max_attempts=MAX_ATTEMPTS)
    assert (queued.state, action) == (State.QUEUED, Action.QUEUE)
    assert step(queued, Outcome.PLACED, worker="a", max_attempts=MAX_ATTEMPTS)[1] is Action.SEND
    assert step(queued, Outcome.REFUSED, max_attempts=MAX_ATTEMPTS)[1] is Action.REFUSE
    assert step(queued, Outcome.NO_WORKER, max_attempts=MAX_ATTEMPTS)[1] is Action.REFUSE


def test_a_worker_s_own_error_is_also_the_answer_where_there_is_no_other_room() -> None:
    failed, _ = step(waiting(), Outcome.SERVER_ERROR, max_attempts=MAX_ATTEMPTS)
    queued, _ = step(failed, Outcome.NO_ROOM, max_attempts=MAX_ATTEMPTS)
    assert step(queued, Outcome.REFUSED, max_attempts=MAX_ATTEMPTS)[1] is Action.DELIVER


@pytest.mark.parametrize(
    ("state", "outcome", "action"),
    [
        (State.CHOOSING, Outcome.PREFILL_FIRST, Action.PREFILL),
        (State.QUEUED, Outcome.PREFILL_FIRST, Action.PREFILL),
        (State.PREFILLING, Outcome.PREFILLED, Action.CHOOSE),
        (State.PREFILLING, Outcome.PREFILL_FAILED, Action.DELIVER),
        (State.PREFILLING, Outcome.PREFILL_LOST, Action.FAIL),
        (State.PREFILLING, Outcome.NO_PREFILL, Action.REFUSE),
        (State.WAITING, Outcome.GATE_REFUSED, Action.CHOOSE),
        (State.WAITING, Outcome.UNREADABLE, Action.FAIL),
    ],
)
def test_gates_and_prefill_attempts(state: State, outcome: Outcome, action: Action) -> None:
    assert step(Progress(state=state, attempts=1, worker="a"), outcome, max_attempts=MAX_ATTEMPTS)[1] is action


def test_a_refusal_by_a_gate_is_no_failure() -> None:
    after, _ = step(waiting(answered=True), Outcome.GATE_REFUSED, max_attempts=1)
    assert (after.attempts, after.refusals, after.answered, after.excluded) == (0, 1, False, frozenset())
    assert step(after, Outcome.NO_WORKER, max_attempts=1)[1] is Action.REFUSE


def test_what_was_prefilled_is_good_for_one_attempt() -> None:
    after, _ = step(Progress(state=State.PREFILLING), Outcome.PREFILLED, max_attempts=MAX_ATTEMPTS)
    assert after.transferred
    sent, _ = step(after, Outcome.PLACED, worker="a", max_attempts=MAX_ATTEMPTS)
    assert sent.transferred
    assert not step(sent, Outcome.LOST, max_attempts=MAX_ATTEMPTS)[0].transferred


def test_a_prefill_that_fails_in_the_midst_of_an_answer_ends_it() -> None:
    begun = Progress(state=State.PREFILLING, attempts=1, begun=True)
    for outcome in (Outcome.PREFILL_FAILED, Outcome.PREFILL_LOST, Outcome.NO_PREFILL):
        assert step(begun, outcome, max_attempts=MAX_ATTEMPTS)[1] is Action.BREAK


def test_attempts_are_bounded() -> None:
    after, action = step(waiting(attempts=MAX_ATTEMPTS), Outcome.UNREACHABLE, max_attempts=MAX_ATTEMPTS)
    assert (after.state, action) == (State.ENDED, Action.REFUSE)


@pytest.mark.parametrize(("state", "outcome"), list(product(State, Outcome)))
def test_what_the_table_does_not_have_raises(state: State, outcome: Outcome) -> None:
    if outcome not in TABLE[state]:
        with pytest.raises(IllegalOutcomeError):
            step(Progress(state=state), outcome, worker="a", max_attempts=MAX_ATTEMPTS)


@given(st.lists(st.sampled_from(list(Outcome)), max_size=40), st.sampled_from(["a", "b", "c"]), st.integers(1, 5))
def test_every_course_ends_and_never_asks_too_often(outcomes: list[Outcome], worker: str, max_attempts: int) -> None:
    progress, action = Progress(), Action.CHOOSE
    for outcome in outcomes:
        if outcome not in TABLE[progress.state] or (outcome is Outcome.PLACED and worker in progress.excluded):
            continue
        if outcome is Outcome.PREFILL_FIRST and progress.transferred:
            with pytest.raises(IllegalOutcomeError):
                step(progress, outcome, max_attempts=max_attempts)
            continue
        progress, action = step(progress, outcome, worker=worker, max_attempts=max_attempts)
        assert progress.attempts <= max_attempts
        assert (progress.state is State.ENDED) == (action in LAST_ACTIONS)
        whole = outcome in {Outcome.ANSWERED, Outcome.PREFILL_FAILED}
        assert (action is Action.DELIVER) <= (whole or progress.answered)
        assert progress.transferred <= (progress.state in {State.CHOOSING, State.QUEUED, State.WAITING, State.ENDED})
