"""State machine of one supervised process (pure): from an event and its time to the next state and one action.

A process that ends is started again after a pause that doubles with each failure (1 s up to 30 s) and is one second
again after it was ready for a minute. One that never was ready is given up after a few failures: the cause is then
permanent. A process that is alive but not ready for too long is ended, and started again after the same pause. Nothing
here starts or ends a process; the supervisor carries out the actions and reports events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from cachefleet_runtime.backoff import backoff

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""After it was ready for this long, a process's earlier failures do not count."""
FIRST_STARTS: Final = 3
"""Starts that a process which never was ready is given."""


class State(StrEnum):
    """State of a supervised process."""

    WAITING = "waiting"  # for those that must be ready first
    STARTING = "starting"  # runs, does not answer yet
    READY = "ready"
    BACKING_OFF = "backing off"  # has ended, will be started again
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"  # will not be started again


class Event(StrEnum):
    """What can happen to a process."""

    START = "start"  # its turn has come, or its pause is over
    ANSWERED = "answered"  # its readiness URL says yes
    SILENT = "silent"  # its readiness URL says no, or nothing
    OVERDUE = "overdue"  # not ready within its time
    EXITED = "exited"
    STOP = "stop"


class Action(StrEnum):
    """What the supervisor has to do now."""

    NOTHING = "nothing"
    SPAWN = "spawn"
    END = "end"


class IllegalEventError(ValueError):
    """An event that cannot happen in this state; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Life:
    """State and history of one process. Times are of one monotonic clock, in seconds."""

    state: State = State.WAITING
    since: float = 0.0
    failures: int = 0
    """Failures in a row, without being ready for STEADY_SECONDS in between."""
    starts: int = 0
    was_ready: bool = False
    returning: bool = False
    """It was ready, ended, and is not ready again yet."""
    wake_at: float = 0.0
    """While backing off: when START is due."""
    exit_status: int | None = None
    """Exit status of the last run that ended."""


_S, _E, _A = State, Event, Action

TRANSITIONS: Final[dict[tuple[State, Event], tuple[State, Action]]] = {
    (_S.WAITING, _E.START): (_S.STARTING, _A.SPAWN),
    (_S.WAITING, _E.STOP): (_S.STOPPED, _A.NOTHING),
    (_S.STARTING, _E.ANSWERED): (_S.READY, _A.NOTHING),
    (_S.STARTING, _E.SILENT): (_S.STARTING, _A.NOTHING),
    (_S.STARTING, _E.OVERDUE): (_S.STARTING, _A.END),
    (_S.STARTING, _E.EXITED): (_S.BACKING_OFF, _A.NOTHING),
    (_S.STARTING, _E.STOP): (_S.STOPPING, _A.END),
    (_S.READY, _E.ANSWERED): (_S.READY, _A.NOTHING),
    (_S.READY, _E.SILENT): (_S.STARTING, _A.NOTHING),
    (_S.READY, _E.EXITED): (_S.BACKING_OFF, _A.NOTHING),
    (_S.READY, _E.STOP): (_S.STOPPING, _A.END),
    (_S.BACKING_OFF, _E.START): (_S.STARTING, _A.SPAWN),
    (_S.BACKING_OFF, _E.STOP): (_S.STOPPED, _A.NOTHING),
    (_S.STOPPING, _E.ANSWERED): (_S.STOPPING, _A.NOTHING),
    (_S.STOPPING, _E.SILENT): (_S.STOPPING, _A.NOTHING),
    (_S.STOPPING, _E.OVERDUE): (_S.STOPPING, _A.NOTHING),
    (_S.STOPPING, _E.STOP): (_S.STOPPING, _A.NOTHING),
    (_S.STOPPING, _E.EXITED): (_S.STOPPED, _A.NOTHING),
    (_S.STOPPED, _E.STOP): (_S.STOPPED, _A.NOTHING),
    (_S.FAILED, _E.STOP): (_S.FAILED, _A.NOTHING),
}


def step(life: Life, event: Event, *, now: float, exit_status: int | None = None) -> tuple[Life, Action]:
    """The life after ``event``, and the action. IllegalEventError where the table has no such transition."""
    try:
        state, action = TRANSITIONS[life.state, event]
    except KeyError:
        raise IllegalEventError(f"{event} cannot happen to a process that is {life.state}") from None
    if event is Event.EXITED:
        return _ended(life, state, now=now, exit_status=exit_status), action
    if state is not life.state:
        is_ready = state is State.READY
        was_ready, returning = life.was_ready or is_ready, life.returning and not is_ready
        life = replace(life, state=state, since=now, was_ready=was_ready, returning=returning)
    if action is Action.SPAWN:
        life = replace(life, starts=life.starts + 1)
    return life, action


def pause(failures: int) -> float:
    """Seconds to wait after this many failures in a row."""
    return backoff(failures - 1, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)


def _ended(life: Life, state: State, *, now: float, exit_status: int | None) -> Life:
    steady = life.state is State.READY and now - life.since >= STEADY_SECONDS
    failures = 1 if steady else life.failures + 1
    ended = replace(life, state=state, since=now, failures=failures, exit_status=exit_status)
    if state is not State.BACKING_OFF:
        return ended
    if not life.was_ready and life.starts >= FIRST_STARTS:
        return replace(ended, state=State.FAILED)
    return replace(ended, returning=life.was_ready, wake_at=now + pause(failures))
