"""What can happen to an attempt, and which of it counts against its worker."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """What happened last."""

    PLACED = "placed"
    """A worker was decided on."""
    NO_ROOM = "no_room"
    """Nobody has room now, or others go first; it may wait."""
    REFUSED = "refused"
    """It may not wait, has waited in vain, or is larger than any worker."""
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
    HANDED_BACK = "handed_back"
    """The worker gave the answer up; another one is to go on with it."""
    CUT_OFF = "cut_off"
    """The connection broke in the midst of a stream; another worker can go on with it."""
    RESUMABLE = "resumable"
    """What to ask the next worker for is known."""
    STRANDED = "stranded"
    """It is not."""
    GATE_REFUSED = "gate_refused"
    """The worker's gate let it not pass, and the client is not to hear of it."""
    UNREADABLE = "unreadable"
    """Whether it did cannot be told from the answer."""
    PREFILL_FIRST = "prefill_first"
    """A worker was decided on for which another one has to compute the prompt."""
    PREFILLED = "prefilled"
    PREFILL_FAILED = "prefill_failed"
    """The Prefill worker answered with an error."""
    PREFILL_LOST = "prefill_lost"
    """Prefill workers were asked, and gave no answer."""
    NO_PREFILL = "no_prefill"
    """None could be asked."""


RETRIES: Final = frozenset({Outcome.UNREACHABLE, Outcome.SERVER_ERROR, Outcome.LOST})
"""Outcomes after which another worker is asked."""
BLAMES: Final = RETRIES | {Outcome.SILENT, Outcome.CUT_OFF}
"""Outcomes of an attempt that speak against its worker, whether or not another one is asked."""
