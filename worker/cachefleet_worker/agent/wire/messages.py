"""What a follower is told and what it answers, and the engine's frames that carry it: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NewType

Seq = NewType("Seq", int)
Ticket = NewType("Ticket", int)
"""Names one request for a replay or a snapshot, so that answers to an earlier one are told apart."""

_NUMBER_BYTES: Final = 8
_END: Final = b"\xff" * _NUMBER_BYTES

# Inputs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Live:
    """A batch from the live socket."""

    seq: Seq
    payload: bytes


@dataclass(frozen=True, slots=True)
class Replayed:
    """A batch that answers a replay request."""

    ticket: Ticket
    seq: Seq
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplayEnded:
    """The replay's end marker."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class ReplayFailed:
    """No end marker in time, or no socket."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Snapped:
    """A whole snapshot of process ``boot``, exact at ``seq`` (-1: nothing was published yet), lies ready."""

    ticket: Ticket
    seq: Seq
    boot: str


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot asked for did not come whole."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark of process ``boot``; ``agrees`` says whether its sums are ours right there, None where it is not known."""

    boot: str
    agrees: bool | None = None


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """The batch applied last could not be read, and may have removed anything."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """Proof from outside the stream that the process behind it may be another."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes."""


Input = (
    Live
    | Replayed
    | ReplayEnded
    | ReplayFailed
    | Snapped
    | SnapshotFailed
    | Marked
    | UnreadableBatch
    | Restarted
    | Tick
)

# Effects ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Apply:
    """Take the next batch."""

    seq: Seq
    payload: bytes


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Request a replay from ``start`` on."""

    ticket: Ticket
    start: Seq


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """Request everything the engine holds."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Restore:
    """Hold what the snapshot that lies ready holds, as one."""

    seq: Seq


@dataclass(frozen=True, slots=True)
class PeekMark:
    """Look at nothing but the mark of a batch that is not applied."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Batches are lost for good, or could not be read (0): nothing held so far can be proven."""

    lost: int


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Another process: nothing of before is true."""

    reason: str


@dataclass(frozen=True, slots=True)
class Count:
    """Something to be counted."""

    what: Literal[
        "gaps",
        "replays",
        "replay_failures",
        "probes",
        "duplicates",
        "stale_replies",
        "held_back_overflows",
        "late_starts",
        "late_batches",
        "snapshots",
        "snapshot_failures",
        "divergences",
    ]


Effect = Apply | RequestReplay | RequestSnapshot | Restore | PeekMark | Forget | NewEpoch | Count


def read_live(frames: list[bytes]) -> Live | None:
    """The batch in a message of the live socket (topic, number, payload), or None where it is no such message."""
    if len(frames) != 3 or len(frames[1]) != _NUMBER_BYTES:
        return None
    return Live(Seq(int.from_bytes(frames[1], "big")), frames[2])


def read_reply(frames: list[bytes], ticket: Ticket) -> Replayed | ReplayEnded | None:
    """The answer in a message of the replay socket (empty, topic, number, payload), or None where it is no answer."""
    if len(frames) != 4 or len(frames[2]) != _NUMBER_BYTES:
        return None
    if frames[2] == _END:
        return ReplayEnded(ticket)
    return Replayed(ticket, Seq(int.from_bytes(frames[2], "big")), frames[3])


def replay_request(start: Seq) -> list[bytes]:
    """The message that asks for everything from ``start`` on."""
    return [b"", start.to_bytes(_NUMBER_BYTES, "big")]
