"""The legs of one request: what to do after each outcome, as a table.

A request is CHOOSING (a worker has to be decided on), WAITING (a leg is sent; nothing of its answer has gone to the
client) or RELAYING (the client has seen bytes). The first event of a leg is held back while WAITING, so a leg that
fails before it leaves no trace and another worker is asked. Once bytes are out a failure can only end the answer.

Two rules besides the table, both in ``step``:

- A lost connection is first tried again on the same worker: an idle kept-alive connection that the worker closed
  looks exactly like a worker that died, and a dead one refuses the next connection at once. The second time the
  worker is excluded.
- After ``max_legs`` attempts, or when every worker is excluded, the request ends with the worker's own last answer
  where it gave one (a 5xx), else with an error of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """Where a request is; ENDED is final."""

    CHOOSING = "choosing"
    WAITING = "waiting"
    RELAYING = "relaying"
    ENDED = "ended"


class Outcome(StrEnum):
    """What happened last."""

    PLACED = "placed"
    """A worker was decided on."""
    NO_WORKER = "no_worker"
    UNREACHABLE = "unreachable"
    """The connection was refused, or not there in time."""
    LOST = "lost"
    """The connection ended or broke before the answer did."""
    SERVER_ERROR = "server_error"
    """The worker answered 5xx, or its stream began with such an error."""
    SILENT = "silent"
    """Connected, but no byte for longer than the bound."""
    OVERSIZED = "oversized"
    """An answer or event longer than the bound."""
    ANSWERED = "answered"
    """The whole answer is here: not a stream, or an error of the request's own (4xx)."""
    FIRST_EVENT = "first_event"
    FINISHED = "finished"
    """The stream came to its end."""


class Action(StrEnum):
    """What to do next."""

    CHOOSE = "choose"
    SEND = "send"
    DELIVER = "deliver"
    """Send the whole answer."""
    RELAY = "relay"
    """Send what was held back, then what follows."""
    REFUSE = "refuse"
    """503 with Retry-After: nobody to ask."""
    FAIL = "fail"
    """502 or 504: asked, and got nothing."""
    BREAK = "break"
    """End the client's stream with an error event."""
    CLOSE = "close"
    """All is said."""


Row = tuple[State, Action]

_RETRY: Final[Row] = (State.CHOOSING, Action.CHOOSE)

TABLE: Final[Mapping[State, Mapping[Outcome, Row]]] = MappingProxyType(
    {
        State.CHOOSING: {
            Outcome.PLACED: (State.WAITING, Action.SEND),
            Outcome.NO_WORKER: (State.ENDED, Action.REFUSE),
        },
        State.WAITING: {
            Outcome.UNREACHABLE: _RETRY,
            Outcome.LOST: _RETRY,
            Outcome.SERVER_ERROR: _RETRY,
            # The worker may be at work on it: asking another one would double the load where it is highest.
            Outcome.SILENT: (State.ENDED, Action.FAIL),
            Outcome.OVERSIZED: (State.ENDED, Action.FAIL),
            Outcome.ANSWERED: (State.ENDED, Action.DELIVER),
            Outcome.FIRST_EVENT: (State.RELAYING, Action.RELAY),
        },
        State.RELAYING: {
            Outcome.FINISHED: (State.ENDED, Action.CLOSE),
            Outcome.LOST: (State.ENDED, Action.BREAK),
            Outcome.SILENT: (State.ENDED, Action.BREAK),
            Outcome.OVERSIZED: (State.ENDED, Action.BREAK),
        },
        State.ENDED: {},
    }
)

RETRIES: Final = frozenset({Outcome.UNREACHABLE, Outcome.SERVER_ERROR, Outcome.LOST})
"""Outcomes after which another worker is asked."""
BLAMES: Final = RETRIES | {Outcome.SILENT}
"""Outcomes of a leg that speak against its worker, whether or not another one is asked."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request has come. ``answered`` says that the last worker's own 5xx can be delivered."""

    state: State = State.CHOOSING
    legs: int = 0
    worker: str = ""
    """By its full name, as all workers here."""
    excluded: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()
    """Workers that lost a connection once."""
    answered: bool = False


class IllegalOutcomeError(ValueError):
    """An outcome that cannot happen in this state; nothing has changed."""


def step(progress: Progress, outcome: Outcome, *, worker: str = "", max_legs: int) -> tuple[Progress, Action]:
    """What follows ``outcome``; ``worker`` is the one decided on, with PLACED. IllegalOutcomeError."""
    row = TABLE[progress.state].get(outcome)
    if row is None:
        raise IllegalOutcomeError(f"{outcome} while {progress.state}")
    state, action = row
    if outcome is Outcome.PLACED:
        return replace(progress, state=state, worker=worker, legs=progress.legs + 1), action
    if progress.state is State.WAITING and outcome in RETRIES:
        return _blame(progress, outcome, max_legs=max_legs)
    if outcome is Outcome.NO_WORKER and progress.legs:
        return _exhausted(progress)
    return replace(progress, state=state), action


def _blame(progress: Progress, outcome: Outcome, *, max_legs: int) -> tuple[Progress, Action]:
    progress = replace(progress, answered=outcome is Outcome.SERVER_ERROR)
    if progress.legs >= max_legs:
        return _exhausted(progress)
    progress = replace(progress, state=State.CHOOSING)
    if outcome is Outcome.LOST and progress.worker not in progress.suspects:
        return replace(progress, suspects=progress.suspects | {progress.worker}), Action.CHOOSE
    return replace(progress, excluded=progress.excluded | {progress.worker}), Action.CHOOSE


def _exhausted(progress: Progress) -> tuple[Progress, Action]:
    if progress.answered:
        return replace(progress, state=State.ENDED), Action.DELIVER
    return replace(progress, state=State.ENDED), Action.REFUSE
