"""Outcomes of a request's attempts, and which of them count against the worker."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """What the last step of a request came to; the name in metrics and decision records."""

    PLACED = "placed"
    """A worker was decided on."""
    NO_ROOM = "no_room"
    """No worker has room now, or others go first; the request may wait."""
    REFUSED = "refused"
    """No worker for it: it may not wait, waited too long, is too large, or has to be cached and is not."""
    NO_WORKER = "no_worker"
    UNREACHABLE = "unreachable"
    """The connection was refused, or not there in time."""
    LOST = "lost"
    """The connection ended or broke before the answer did."""
    DIED = "died"
    """The worker's engine has ended: the connection broke, or it answered 5xx, and now it refuses connections."""
    FATAL = "fatal"
    """Engines ended while they computed it, and it is not sent to another one."""
    SERVER_ERROR = "server_error"
    """The worker answered 5xx, or its stream began with such an error."""
    KEY_REFUSED = "key_refused"
    """The worker answered 401 or 403 to the gateway's own key: nothing that the client has sent is wrong."""
    SILENT = "silent"
    """Connected, but no byte for longer than the bound."""
    STALLED = "stalled"
    """The fleet knows that its worker is gone or serves nothing, and no byte came for so long; another one is asked."""
    CROWDED = "crowded"
    """A whole answer for which there is no room: too many bytes of answers are held."""
    OVERSIZED = "oversized"
    """An answer or event longer than the bound."""
    UNDECODABLE = "undecodable"
    """Compressed, though none was asked for, in a way that cannot be decoded here."""
    ANSWERED = "answered"
    """The whole answer is here: not a stream, or an error of the request's own (4xx)."""
    FIRST_EVENT = "first_event"
    FINISHED = "finished"
    """The stream came to its end."""
    STOPPED = "stopped"
    """The gateway ended the answer before its worker did: a stop string was found across two workers' texts."""
    ERROR_EVENT = "error_event"
    """The worker ended its stream with an error."""
    RESTARTED = "restarted"
    """The replica stopped, and the time to finish its answers was over."""
    CANCELLED = "cancelled"
    """The client left before the answer's end."""
    HANDED_BACK = "handed_back"
    """The worker handed the answer back; another one is to continue it."""
    MOVED = "moved"
    """Its worker drains; another one is to continue it."""
    ABORTED = "aborted"
    """The engine gave the answer up for reasons of its own, and nobody can resume it."""
    UNFIT = "unfit"
    """The worker cannot make the stream again of which the client has the beginning; another one is asked."""
    CUT_OFF = "cut_off"
    """The connection broke within a stream; another worker can continue it."""
    RESUMABLE = "resumable"
    """What to ask the next worker for is known."""
    STRANDED = "stranded"
    """What to ask the next worker for could not be learnt."""
    GATE_REFUSED = "gate_refused"
    """The worker's gate refused it, and the client is not told."""
    UNREADABLE = "unreadable"
    """Whether the gate refused it cannot be told from the answer."""
    PREFILL_FIRST = "prefill_first"
    """A worker was decided on for which a Prefill worker has to compute the prompt."""
    PREFILLED = "prefilled"
    PREFILL_FAILED = "prefill_failed"
    """The Prefill worker answered with an error."""
    PREFILL_LOST = "prefill_lost"
    """Prefill workers were asked, and none gave an answer."""
    NO_PREFILL = "no_prefill"
    """No Prefill worker could be asked."""


RETRIES: Final = frozenset(
    {
        *(Outcome.UNREACHABLE, Outcome.SERVER_ERROR, Outcome.LOST, Outcome.DIED, Outcome.KEY_REFUSED),
        *(Outcome.STALLED, Outcome.ABORTED, Outcome.UNFIT),
    }
)
"""Outcomes after which another worker is asked."""
ENDS: Final = RETRIES | {
    *(Outcome.SILENT, Outcome.OVERSIZED, Outcome.CUT_OFF, Outcome.HANDED_BACK, Outcome.MOVED, Outcome.ERROR_EVENT),
}
"""Outcomes of a last attempt by which a worker ended the request's answer: no other one has gone on with it."""
BREAKS: Final = frozenset({Outcome.LOST, Outcome.SERVER_ERROR, Outcome.CUT_OFF})
"""Outcomes of an attempt after which its engine may have ended."""
BLAMES: Final = (RETRIES - {Outcome.UNFIT}) | {Outcome.SILENT, Outcome.CUT_OFF}
"""Outcomes of an attempt that count against its worker, whether or not another one is asked."""
