"""The values of ``stream_machine``: one report stream, its inputs, its events to count, and the effects of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cachefleet_controlplane.index.frame_ingest import DeltaFrame, Report, SnapshotFrame
from cachefleet_core.report_frames import Hello, Resync, State

STALE_SECONDS: Final = 5.0
"""Without a State, or out of step, for this long, a stream's blocks are not trusted."""


class StreamState(StrEnum):
    """How far the index may be trusted for this stream; the transitions are in ``stream_machine``."""

    UNKNOWN = "unknown"
    AWAITING = "awaiting"
    ASSEMBLING = "assembling"
    LIVE = "live"
    ADRIFT = "adrift"
    FORGOTTEN = "forgotten"


class StreamEvent(StrEnum):
    """What happened on a stream, to be counted; the value is a metric's label."""

    EPOCH = "epoch"
    GAP = "gap"
    DUPLICATE = "duplicate"
    DIVERGENCE = "divergence"
    FOREIGN = "foreign"
    BROKEN_SNAPSHOT = "broken_snapshot"
    TOO_LARGE = "too_large"
    EXPIRED = "expired"
    OVERDUE = "overdue"


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """Input: a Hello arrived on a connection; later connections have greater numbers."""

    connection: int
    hello: Hello


@dataclass(frozen=True, slots=True)
class Received:
    """Input: another frame arrived on a connection."""

    connection: int
    frame: Report


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """Input: a connection is closed."""

    connection: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Input: time has passed."""


StreamInput = ConnectionOpened | Received | ConnectionClosed | Tick


@dataclass(frozen=True, slots=True)
class Apply:
    """Effect: apply a Delta to the index."""

    delta: DeltaFrame


@dataclass(frozen=True, slots=True)
class Replace:
    """Effect: replace the worker's blocks by those of a snapshot, all of whose parts these are."""

    parts: tuple[SnapshotFrame, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Effect: remove the worker's blocks from the index."""


@dataclass(frozen=True, slots=True)
class RequestResync:
    """Effect: send this frame to the agent."""

    frame: Resync


@dataclass(frozen=True, slots=True)
class Count:
    """Effect: count an event."""

    event: StreamEvent


@dataclass(frozen=True, slots=True)
class Accept:
    """Effect: take over the load that this State reports."""

    state: State


Effect = Apply | Replace | Drop | RequestResync | Count | Accept


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A snapshot whose last part is still missing, and the Deltas that came between its parts."""

    sequence: int
    parts: tuple[SnapshotFrame, ...] = ()
    held_back: tuple[DeltaFrame, ...] = ()
    size: int = 0
    """Bytes of all these frames."""


_FRESHNESS: Final = ("stream_state", "reported", "heard_at", "out_of_step_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStream:
    """One worker rank's report stream."""

    rank: int = 0
    stream_state: StreamState = StreamState.UNKNOWN
    epoch: str = ""
    connection: int = 0
    sequence: int = 0
    """Number of the last Delta or snapshot applied to the index."""
    assembly: Assembly | None = None
    heard_at: float = 0.0
    """When the last State came, or the first Hello where there was none since."""
    reported: bool = False
    """Whether a State has come in this epoch."""
    asked_at: float = 0.0
    attempts: int = 0
    """Snapshots asked for since a digest agreed."""
    out_of_step_at: float | None = None
    """Since when it waits for a whole snapshot; None while in step."""
    dropped: bool = False
    """The index holds none of its blocks until that snapshot."""

    def stale(self, now: float) -> bool:
        """Whether its blocks are not trusted: forgotten, or without a report or out of step for too long."""
        idle = self.stream_state in (StreamState.UNKNOWN, StreamState.FORGOTTEN)
        return idle or not self.reported or max(now - self.heard_at, self.strayed(now)) > STALE_SECONDS

    def due(self) -> Iterator[float]:
        """The times at which ``stale`` may change if no frame arrives."""
        yield self.heard_at + STALE_SECONDS
        if self.out_of_step_at is not None:
            yield self.out_of_step_at + STALE_SECONDS

    def as_fresh_as(self, other: ReportStream) -> bool:
        """Whether ``stale`` gives the same for both at every time."""
        return all(getattr(self, name) == getattr(other, name) for name in _FRESHNESS)

    def strayed(self, now: float) -> float:
        """Seconds since it got out of step; 0 while in step."""
        return 0.0 if self.out_of_step_at is None else now - self.out_of_step_at
