"""What is known of one report stream, what may happen to it, and what follows: the values of ``residency``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cachefleet_controlplane.index.frames import DeltaFrame, Report, SnapshotFrame
from cachefleet_core.reports import Hello, Resync, State

STALE_SECONDS: Final = 5.0
"""Without a State for this long, or out of step, what a worker holds says nothing any more."""


class StreamState(StrEnum):
    """How far the index may be trusted for this stream."""

    UNKNOWN = "unknown"
    AWAITING = "awaiting"
    ASSEMBLING = "assembling"
    LIVE = "live"
    ADRIFT = "adrift"
    FORGOTTEN = "forgotten"


class StreamEvent(StrEnum):
    """What is worth counting."""

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
class Opened:
    """A Hello arrived on a connection; later connections have greater numbers."""

    connection: int
    hello: Hello


@dataclass(frozen=True, slots=True)
class Received:
    """Another frame arrived on a connection."""

    connection: int
    frame: Report


@dataclass(frozen=True, slots=True)
class Closed:
    """A connection is gone."""

    connection: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


StreamInput = Opened | Received | Closed | Tick


@dataclass(frozen=True, slots=True)
class Apply:
    """Take a Delta over into the index."""

    delta: DeltaFrame


@dataclass(frozen=True, slots=True)
class Replace:
    """Hold exactly what these parts of one snapshot say."""

    parts: tuple[SnapshotFrame, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Hold nothing."""


@dataclass(frozen=True, slots=True)
class RequestResync:
    """Send this to the agent."""

    frame: Resync


@dataclass(frozen=True, slots=True)
class Count:
    note: StreamEvent


@dataclass(frozen=True, slots=True)
class Accept:
    """A State of this stream: take its load over."""

    state: State


Effect = Apply | Replace | Drop | RequestResync | Count | Accept


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A snapshot whose last part is not in yet, and the Deltas that came between its parts."""

    sequence: int
    parts: tuple[SnapshotFrame, ...] = ()
    held_back: tuple[DeltaFrame, ...] = ()
    size: int = 0
    """Bytes of all these."""


_FRESHNESS: Final = ("stream_state", "reported", "heard_at", "strayed_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What is known of one worker rank's stream."""

    rank: int = 0
    stream_state: StreamState = StreamState.UNKNOWN
    epoch: str = ""
    connection: int = 0
    sequence: int = 0
    """Of the last Delta or snapshot that the index has."""
    assembly: Assembly | None = None
    heard_at: float = 0.0
    """Of the last State, or of the first Hello where there was none since."""
    reported: bool = False
    """A State has come in this epoch."""
    asked_at: float = 0.0
    attempts: int = 0
    """Snapshots asked for since a digest agreed."""
    strayed_at: float | None = None
    """Since when a whole snapshot is waited for; None while in step."""
    dropped: bool = False
    """The index holds nothing of it until that snapshot."""

    def stale(self, now: float) -> bool:
        """Its blocks say nothing: too long without a report or out of step, or forgotten."""
        idle = self.stream_state in (StreamState.UNKNOWN, StreamState.FORGOTTEN)
        return idle or not self.reported or max(now - self.heard_at, self.strayed(now)) > STALE_SECONDS

    def due(self) -> Iterator[float]:
        """When ``stale`` may change if nothing is heard."""
        yield self.heard_at + STALE_SECONDS
        if self.strayed_at is not None:
            yield self.strayed_at + STALE_SECONDS

    def as_fresh_as(self, other: Stream) -> bool:
        """``stale`` gives the same for both at every time."""
        return all(getattr(self, name) == getattr(other, name) for name in _FRESHNESS)

    def strayed(self, now: float) -> float:
        """Seconds for which what the index holds has not been kept up."""
        return 0.0 if self.strayed_at is None else now - self.strayed_at
