"""What to do after each outcome of an attempt, as a table.

A request is CHOOSING (a worker has to be decided on), QUEUED (it waits for room on one), WAITING (an attempt is sent,
and nothing of its answer was sent to the client) or RELAYING (the client has got bytes). The first event of an attempt
is held back while WAITING, so an attempt that fails before it is not seen by the client, and another worker is asked.
Once bytes are sent a failure can only end the answer, unless another worker can resume it: then the request is RESUMING
until it is known what to ask for. In a fleet of Prefill and Decode pools it may be PREFILLING: a Prefill worker
computes its prompt, which is a small request of its own, and then the answering worker is decided on anew.

Rules besides the table, in ``step``:

- A lost connection is first tried again on the same worker: an idle kept-alive connection that the worker closed
  looks exactly like a worker that died, and a dead one refuses the next connection at once. The second time the
  worker is excluded.
- After ``max_attempts`` attempts, or when every worker is excluded, the request ends with the worker's own last answer
  where it gave one (a 5xx), else with an error of ours. A worker's 401 or 403 is never delivered: what it refuses is
  the gateway's own key, so the worker is excluded, and the error is a 502 where no other one is left.
- A worker whose engine has ended (``engine_deaths``) is excluded at once, and what it answered is not delivered. Before
  each attempt a request may turn out to be what ends engines: it is FATAL then, and sent to no other one.
- A worker that handed an answer back, or drains, is avoided, one whose connection broke within it is excluded. That an
  answer was moved since its worker drains is no failure: the attempt does not count.
- A refusal by a worker's gate is no failure: its attempt does not count, and an earlier 5xx is not delivered.
- What a Prefill worker computed serves the next attempt alone: one that fails may have taken the blocks already.
- Where the client has got bytes, an answer or error of its own becomes the end of the answer begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.gateway.send.outcome import RETRIES, Outcome


class State(StrEnum):
    """State of a request; ENDED is final."""

    CHOOSING = "choosing"
    QUEUED = "queued"
    WAITING = "waiting"
    RELAYING = "relaying"
    RESUMING = "resuming"
    PREFILLING = "prefilling"
    ENDED = "ended"


class Action(StrEnum):
    """What to do next."""

    CHOOSE = "choose"
    QUEUE = "queue"
    """Wait for room, and be placed when its turn comes."""
    SEND = "send"
    DELIVER = "deliver"
    """Send the whole answer."""
    RELAY = "relay"
    """Send the events held back, then those that follow."""
    PREFILL = "prefill"
    """Have a Prefill worker compute the prompt."""
    RESUME = "resume"
    """Find out what to ask the next worker for."""
    REFUSE = "refuse"
    """Tell the client why no worker is asked: 400, 412, or 429 or 503 with Retry-After."""
    FAIL = "fail"
    """Answer 500, 502 or 504: a worker was asked, and gave no answer that can be used."""
    BREAK = "break"
    """End the client's stream with an error event."""
    CLOSE = "close"
    """End the client's stream: all is sent."""


Row = tuple[State, Action]

_RETRY: Final[Row] = (State.CHOOSING, Action.CHOOSE)
_DECIDED: Final[Mapping[Outcome, Row]] = {
    Outcome.PLACED: (State.WAITING, Action.SEND),
    Outcome.REFUSED: (State.ENDED, Action.REFUSE),
    Outcome.NO_WORKER: (State.ENDED, Action.REFUSE),
    Outcome.PREFILL_FIRST: (State.PREFILLING, Action.PREFILL),
}

TABLE: Final[Mapping[State, Mapping[Outcome, Row]]] = MappingProxyType(
    {
        State.CHOOSING: {
            **_DECIDED,
            Outcome.NO_ROOM: (State.QUEUED, Action.QUEUE),
            Outcome.FATAL: (State.ENDED, Action.FAIL),
        },
        State.QUEUED: _DECIDED,
        State.WAITING: {
            Outcome.UNREACHABLE: _RETRY,
            Outcome.LOST: _RETRY,
            Outcome.DIED: _RETRY,
            Outcome.SERVER_ERROR: _RETRY,
            Outcome.KEY_REFUSED: _RETRY,
            Outcome.STALLED: _RETRY,
            Outcome.ABORTED: _RETRY,
            Outcome.UNFIT: _RETRY,
            # The worker may be at work on it: asking another one would double the load where it is highest.
            Outcome.SILENT: (State.ENDED, Action.FAIL),
            Outcome.OVERSIZED: (State.ENDED, Action.FAIL),
            Outcome.UNDECODABLE: (State.ENDED, Action.FAIL),
            Outcome.CROWDED: (State.ENDED, Action.FAIL),
            Outcome.ANSWERED: (State.ENDED, Action.DELIVER),
            Outcome.FIRST_EVENT: (State.RELAYING, Action.RELAY),
            Outcome.HANDED_BACK: (State.RESUMING, Action.RESUME),
            Outcome.GATE_REFUSED: _RETRY,
            Outcome.UNREADABLE: (State.ENDED, Action.FAIL),
        },
        State.PREFILLING: {
            Outcome.PREFILLED: _RETRY,
            Outcome.PREFILL_FAILED: (State.ENDED, Action.DELIVER),
            Outcome.PREFILL_LOST: (State.ENDED, Action.FAIL),
            Outcome.NO_PREFILL: (State.ENDED, Action.REFUSE),
        },
        State.RELAYING: {
            Outcome.FINISHED: (State.ENDED, Action.CLOSE),
            Outcome.STOPPED: (State.ENDED, Action.CLOSE),
            Outcome.ERROR_EVENT: (State.ENDED, Action.CLOSE),
            Outcome.LOST: (State.ENDED, Action.BREAK),
            Outcome.SILENT: (State.ENDED, Action.BREAK),
            Outcome.OVERSIZED: (State.ENDED, Action.BREAK),
            Outcome.UNDECODABLE: (State.ENDED, Action.BREAK),
            Outcome.ABORTED: (State.ENDED, Action.BREAK),
            Outcome.HANDED_BACK: (State.RESUMING, Action.RESUME),
            Outcome.CUT_OFF: (State.RESUMING, Action.RESUME),
            Outcome.MOVED: (State.RESUMING, Action.RESUME),
        },
        State.RESUMING: {
            Outcome.RESUMABLE: _RETRY,
            Outcome.STRANDED: (State.ENDED, Action.FAIL),
        },
        State.ENDED: {},
    }
)
"""The next state and action. An attempt that ``WAITING`` has retried counts, and excludes its worker, where its outcome
is in ``RETRIES`` too.
"""

_BEFORE_ANSWERS: Final = frozenset({Action.DELIVER, Action.REFUSE, Action.FAIL})
"""Actions that are possible only where nothing was sent to the client."""


class Progress(Struct, frozen=True):
    """How far a request has come; ``answered``: the last worker's own 5xx can be delivered."""

    state: State = State.CHOOSING
    attempts: int = 0
    worker: str = ""
    """Full name, as for all workers here."""
    excluded: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()
    """Workers that lost a connection once."""
    answered: bool = False
    key_refused: bool = False
    """The last worker asked refused the gateway's key."""
    begun: bool = False
    """The client has got bytes."""
    avoided: frozenset[str] = frozenset()
    """Workers that handed it back, or drain: asked again only where there is no other."""
    refusals: int = 0
    """Number of refusals by gates."""
    transferred: bool = False
    """A Prefill worker has computed the prompt for the next attempt."""


_BEGUN: Final = Progress()


def begun() -> Progress:
    """The progress of every request as it begins."""
    return _BEGUN


class IllegalOutcomeError(ValueError):
    """An outcome that cannot happen in this state; nothing has changed."""


def step(progress: Progress, outcome: Outcome, *, worker: str = "", max_attempts: int) -> tuple[Progress, Action]:
    """Return progress and action after ``outcome``; ``worker`` is for PLACED. IllegalOutcomeError."""
    after, action = _follow(progress, outcome, worker=worker, max_attempts=max_attempts)
    # A client that has got the beginning of an answer gets its end there, whatever has happened.
    return after, Action.BREAK if after.begun and action in _BEFORE_ANSWERS else action


def _follow(progress: Progress, outcome: Outcome, *, worker: str, max_attempts: int) -> tuple[Progress, Action]:
    row = TABLE[progress.state].get(outcome)
    if row is None or (outcome is Outcome.PREFILL_FIRST and progress.transferred):
        raise IllegalOutcomeError(f"{outcome} while {progress.state}")
    state, action = row
    if progress.transferred and progress.state in {State.WAITING, State.RELAYING}:
        progress = replace(progress, transferred=False)
    if progress.key_refused and outcome in {Outcome.PLACED, Outcome.REFUSED}:  # another one is asked, or has no room
        progress = replace(progress, key_refused=False)
    progress = _noted(progress, outcome)
    if outcome is Outcome.PLACED and progress is _BEGUN:
        return Progress(state, 1, worker), action  # as nearly always
    if outcome is Outcome.PLACED:
        return replace(progress, state=state, worker=worker, attempts=progress.attempts + 1), action
    if progress.state is State.WAITING and outcome in RETRIES:
        return _blame(progress, outcome, max_attempts=max_attempts)
    if (outcome in {Outcome.NO_WORKER, Outcome.REFUSED} and progress.attempts) or (
        outcome is Outcome.CUT_OFF and progress.attempts >= max_attempts
    ):
        return _exhausted(progress)
    return replace(progress, state=state), action


def _noted(progress: Progress, outcome: Outcome) -> Progress:
    """Note what an outcome says of its worker, and of what the client has got."""
    match outcome:
        case Outcome.FIRST_EVENT:
            return replace(progress, begun=True)
        case Outcome.HANDED_BACK | Outcome.MOVED:
            avoided, attempts = progress.avoided | {progress.worker}, progress.attempts - (outcome is Outcome.MOVED)
            return replace(progress, avoided=avoided, attempts=attempts)
        case Outcome.CUT_OFF:
            return replace(progress, excluded=progress.excluded | {progress.worker})
        case Outcome.GATE_REFUSED:
            return replace(progress, refusals=progress.refusals + 1, attempts=progress.attempts - 1, answered=False)
        case Outcome.PREFILLED:
            return replace(progress, transferred=True, answered=False)
        case _:
            return progress


def _blame(progress: Progress, outcome: Outcome, *, max_attempts: int) -> tuple[Progress, Action]:
    progress = replace(progress, answered=outcome is Outcome.SERVER_ERROR, key_refused=outcome is Outcome.KEY_REFUSED)
    if progress.attempts >= max_attempts:
        return _exhausted(progress)
    progress = replace(progress, state=State.CHOOSING)
    if outcome is Outcome.LOST and progress.worker not in progress.suspects:
        return replace(progress, suspects=progress.suspects | {progress.worker}), Action.CHOOSE
    return replace(progress, excluded=progress.excluded | {progress.worker}), Action.CHOOSE


def _exhausted(progress: Progress) -> tuple[Progress, Action]:
    if progress.answered:
        return replace(progress, state=State.ENDED), Action.DELIVER
    return replace(progress, state=State.ENDED), Action.FAIL if progress.key_refused else Action.REFUSE
