"""The values of ``stream_state_machine``: a report stream, its inputs, events to count, and the effects of a step."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from operator import attrgetter
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.index.frame_ingest import DeltaFrame, Report, SnapshotFrame
from cachefleet_core.report_frames import Hello, Resync, State

FORGET_SECONDS: Final = 15.0
"""Without a State, or out of step, for this long, its blocks are dropped."""
STALE_SECONDS: Final = 5.0
"""Without a State, or out of step, for this long, a stream's blocks are not trusted."""


class StreamState(StrEnum):
    """How far the index may be trusted for this stream; the transitions are in ``stream_state_machine``."""

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


class ConnectionOpened(Struct, frozen=True):
    """Input: a Hello arrived on a connection; later connections have greater numbers."""

    connection: int
    hello: Hello


class Received(Struct, frozen=True):
    """Input: another frame arrived on a connection."""

    connection: int
    frame: Report


class ConnectionClosed(Struct, frozen=True):
    """Input: a connection is closed."""

    connection: int


class Tick(Struct, frozen=True):
    """Input: time has passed."""


StreamInput = ConnectionOpened | Received | ConnectionClosed | Tick


class Apply(Struct, frozen=True):
    """Effect: apply a Delta to the index."""

    delta: DeltaFrame


class Replace(Struct, frozen=True):
    """Effect: replace the worker's blocks by those of a snapshot, all of whose parts these are."""

    parts: tuple[SnapshotFrame, ...]


class Drop(Struct, frozen=True):
    """Effect: remove the worker's blocks from the index."""


class RequestResync(Struct, frozen=True):
    """Effect: send this frame to the agent."""

    frame: Resync


class Count(Struct, frozen=True):
    """Effect: count an event."""

    event: StreamEvent


class Accept(Struct, frozen=True):
    """Effect: take over the load that this State reports."""

    state: State


Effect = Apply | Replace | Drop | RequestResync | Count | Accept


class Assembly(Struct, frozen=True, kw_only=True):
    """A snapshot whose last part is still missing, and the Deltas that came between its parts."""

    sequence: int
    parts: tuple[SnapshotFrame, ...] = ()
    held_back: tuple[DeltaFrame, ...] = ()
    size: int = 0
    """Bytes of all these frames."""


_freshness: Final = attrgetter("stream_state", "reported", "heard_at", "out_of_step_at")


class ReportStream(Struct, frozen=True, kw_only=True):
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

    def expires(self, now: float) -> bool:
        """Whether a Tick may change it."""
        return max(now - self.heard_at, self.strayed(now)) > FORGET_SECONDS

    def due(self) -> Iterator[float]:
        """The times at which ``stale`` may change if no frame arrives."""
        yield self.heard_at + STALE_SECONDS
        if self.out_of_step_at is not None:
            yield self.out_of_step_at + STALE_SECONDS

    def as_fresh_as(self, other: ReportStream) -> bool:
        """Whether ``stale`` gives the same for both at every time."""
        return bool(_freshness(self) == _freshness(other))

    def strayed(self, now: float) -> float:
        """Seconds since it got out of step; 0 while in step."""
        return 0.0 if self.out_of_step_at is None else now - self.out_of_step_at
