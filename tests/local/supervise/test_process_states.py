from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_local.supervise.process_states import (
    FIRST_STARTS,
    LONGEST_PAUSE_SECONDS,
    STEADY_SECONDS,
    TRANSITIONS,
    Action,
    Event,
    IllegalEventError,
    Life,
    State,
    pause,
    step,
)


def run(*events: Event | tuple[Event, float], life: Life | None = None) -> Life:
    life = life or Life()
    for item in events:
        event, now = item if isinstance(item, tuple) else (item, 0.0)
        life, _ = step(life, event, now=now, exit_status=1)
    return life


def test_a_start_that_goes_well() -> None:
    life, action = step(Life(), Event.START, now=1.0)
    assert (life.state, life.since, action) == (State.STARTING, 1.0, Action.SPAWN)
    life, action = step(life, Event.ANSWERED, now=5.0)
    assert (life.state, life.since, life.was_ready, action) == (State.READY, 5.0, True, Action.NOTHING)


def test_a_crash_is_followed_by_a_pause_and_a_new_start() -> None:
    life = run(Event.START, Event.ANSWERED, (Event.EXITED, 10.0))
    assert (life.state, life.wake_at, life.exit_status) == (State.BACKING_OFF, 11.0, 1)
    again, action = step(life, Event.START, now=11.0)
    assert (again.state, again.starts, action) == (State.STARTING, 2, Action.SPAWN)


def test_crashes_in_a_row_wait_longer_up_to_a_bound() -> None:
    assert [pause(n) for n in (1, 2, 3, 6, 1000)] == [1.0, 2.0, 4.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    crash = (Event.START, Event.ANSWERED, Event.EXITED)
    assert run(*crash, *crash, *crash).wake_at == 4.0


def test_a_steady_run_makes_earlier_failures_history() -> None:
    life = run(Event.START, Event.ANSWERED, Event.EXITED, Event.START, Event.ANSWERED, (Event.EXITED, STEADY_SECONDS))
    assert life.failures == 1


def test_one_that_never_was_ready_is_given_up() -> None:
    life = Life()
    for _ in range(FIRST_STARTS - 1):
        life = run(Event.START, Event.EXITED, life=life)
        assert life.state is State.BACKING_OFF
    assert run(Event.START, Event.EXITED, life=life).state is State.FAILED


def test_one_that_once_was_ready_is_never_given_up() -> None:
    life = run(Event.START, Event.ANSWERED, Event.EXITED)
    for _ in range(10 * FIRST_STARTS):
        life = run(Event.START, Event.EXITED, life=life)
    assert life.state is State.BACKING_OFF


def test_too_slow_a_start_is_ended_once_it_is_overdue() -> None:
    life, action = step(run(Event.START), Event.OVERDUE, now=9.0)
    assert (life.state, action) == (State.STARTING, Action.END)


def test_silence_takes_readiness_away_without_a_restart() -> None:
    life, action = step(run(Event.START, Event.ANSWERED), Event.SILENT, now=3.0)
    assert (life.state, life.since, action) == (State.STARTING, 3.0, Action.NOTHING)


@pytest.mark.parametrize(
    ("before", "after", "action"),
    [
        ((), State.STOPPED, Action.NOTHING),
        ((Event.START,), State.STOPPING, Action.END),
        ((Event.START, Event.ANSWERED), State.STOPPING, Action.END),
        ((Event.START, Event.EXITED), State.STOPPED, Action.NOTHING),
    ],
)
def test_stopping_from_any_state(before: tuple[Event, ...], after: State, action: Action) -> None:
    life, todo = step(run(*before), Event.STOP, now=1.0)
    assert (life.state, todo) == (after, action)


def test_a_stopped_process_stays_so() -> None:
    life = run(Event.START, Event.STOP, Event.EXITED)
    assert life.state is State.STOPPED
    with pytest.raises(IllegalEventError, match="start cannot happen to a process that is stopped"):
        step(life, Event.START, now=0.0)


def test_every_state_can_be_told_to_stop() -> None:
    assert {state for state, event in TRANSITIONS if event is Event.STOP} == set(State)


@given(st.lists(st.tuples(st.sampled_from(Event), st.floats(0, 100))))
def test_spawns_and_ends_of_processes_balance(events: list[tuple[Event, float]]) -> None:
    life, alive, now = Life(), 0, 0.0
    for event, passed in events:
        now += passed
        before = life
        try:
            life, action = step(life, event, now=now, exit_status=0)
        except IllegalEventError:
            assert life == before
            continue
        alive += (action is Action.SPAWN) - (event is Event.EXITED)
        assert alive == (life.state in {State.STARTING, State.READY, State.STOPPING})
        if life.state is State.BACKING_OFF:
            assert life.wake_at > life.since
