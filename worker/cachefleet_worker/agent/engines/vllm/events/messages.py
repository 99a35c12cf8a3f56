"""Inputs and effects of the follower, and the frames of vLLM's event sockets: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NewType

Seq = NewType("Seq", int)
Ticket = NewType("Ticket", int)
"""Identifies one replay or snapshot request, so that replies to an earlier one are recognised."""

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
    """A batch in reply to a replay request."""

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
    """A whole snapshot of process ``boot``, exact at ``seq`` (-1: nothing was published yet), is ready."""

    ticket: Ticket
    seq: Seq
    boot: str


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The requested snapshot did not come whole."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark of process ``boot``; ``agrees`` says whether its totals equal ours, None where that is unknown."""

    boot: str
    agrees: bool | None = None


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """The batch applied last could not be read, and may have removed any block."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """Evidence from outside the stream that another process may be behind it."""

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
    """Apply the next batch."""

    seq: Seq
    payload: bytes


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Request a replay from ``start`` on."""

    ticket: Ticket
    start: Seq


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """Request a snapshot of everything the engine holds."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Restore:
    """Adopt the snapshot that is ready, as a whole."""

    seq: Seq


@dataclass(frozen=True, slots=True)
class PeekMark:
    """Read only the mark of a batch that is not applied."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Withdraw everything held: ``lost`` batches are lost for good, or one could not be read (0)."""

    lost: int


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Another process: its epoch begins with nothing held."""

    reason: str


@dataclass(frozen=True, slots=True)
class Count:
    """Count an occurrence in the stream's metrics."""

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
        "late_replays",
        "snapshots",
        "snapshot_failures",
        "divergences",
    ]


Effect = Apply | RequestReplay | RequestSnapshot | Restore | PeekMark | Forget | NewEpoch | Count


def read_live(frames: list[bytes]) -> Live | None:
    """The batch in a message of the live socket (topic, number, payload); None where it is malformed."""
    if len(frames) != 3 or len(frames[1]) != _NUMBER_BYTES:
        return None
    return Live(Seq(int.from_bytes(frames[1], "big")), frames[2])


def read_reply(frames: list[bytes], ticket: Ticket) -> Replayed | ReplayEnded | None:
    """The reply in a message of the replay socket (empty, topic, number, payload); None where it is malformed."""
    if len(frames) != 4 or len(frames[2]) != _NUMBER_BYTES:
        return None
    if frames[2] == _END:
        return ReplayEnded(ticket)
    return Replayed(ticket, Seq(int.from_bytes(frames[2], "big")), frames[3])


def replay_request(start: Seq) -> list[bytes]:
    """The message that requests everything from ``start`` on."""
    return [b"", start.to_bytes(_NUMBER_BYTES, "big")]
