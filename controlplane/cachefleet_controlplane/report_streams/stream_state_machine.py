"""State machine of one worker rank's report stream: frames in, index operations and requests for snapshots out.

A stream is (worker, rank, epoch) on one connection. Its transitions:

==============  ====================  =========================================================================
state           event                 what follows
==============  ====================  =========================================================================
any             Hello                 awaiting; another epoch than before drops the blocks, the same keeps them
any             frame of another      ignored and counted: an older connection cannot alter a newer one's stream
                connection
any but unknown Closed                adrift: the blocks stay until the report is too old
live,           frame whose blocks    state and blocks stay; the connection is closed as malformed
assembling      are malformed
assembling      last part, and some   awaiting; the blocks are dropped, and the connection is closed as malformed
                Delta held back is
                malformed
any but unknown 15 s without State    forgotten: the blocks are dropped
awaiting,       15 s since it was     the blocks are dropped; the state stays, the snapshot may still come
assembling,     last live
adrift
awaiting, live  Snapshot, first part  assembling; the blocks stay as they are until the last part
assembling      Snapshot, next part   the last one replaces the blocks at once, then the held-back Deltas apply: live
assembling      Delta in order        held back
live            Delta in order        applied
live            Delta, number known   ignored and counted: applying it again would undo later ones
live,           number or part out    awaiting, a Resync is asked for; the blocks stay as they are
assembling      of order
live            State, same number,   awaiting, a Resync is asked for
                other digest
awaiting,       State                 the Resync is asked for again when it is overdue
assembling,
forgotten
==============  ====================  =========================================================================

The wait between two Resyncs doubles while they do not help, up to MAX_RETRY_SECONDS; a State whose digest agrees resets
it. Everything here is a value: ``step`` takes the stream, an input, the time and the index's digest of this stream, and
gives the next stream and the effects. Times in seconds on the caller's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.index.frame_ingest import DeltaFrame, SnapshotFrame
from cachefleet_controlplane.report_streams.report_stream import (
    FORGET_SECONDS,
    Accept,
    Apply,
    Assembly,
    ConnectionClosed,
    ConnectionOpened,
    Count,
    Drop,
    Effect,
    Received,
    Replace,
    ReportStream,
    RequestResync,
    StreamEvent,
    StreamInput,
    StreamState,
    Tick,
)
from cachefleet_core.report_frames import Resync, State
from cachefleet_runtime.backoff import backoff

RETRY_SECONDS: Final = 2.0
MAX_RETRY_SECONDS: Final = 30.0
MAX_SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
"""All unfinished snapshots of one connection and the Deltas held back behind them: some 8 million blocks, 3 million
where each is a chain of its own.
"""
MAX_PARTS: Final = 4096
MAX_HELD_BACK: Final = 4096
"""Deltas held back behind one snapshot."""

Step = tuple[ReportStream, tuple[Effect, ...]]


def step(stream: ReportStream, event: StreamInput, now: float, *, digest: int = 0, others: int = 0) -> Step:
    """The stream after an input, and the effects; ``digest`` is the index's own for this stream, before the input.

    ``others`` are the bytes of unfinished snapshots on the other streams of its connection.
    """
    match event:
        case Received():
            return _receive(stream, event, now, digest, others)
        case ConnectionOpened():
            return _open(stream, event, now)
        case ConnectionClosed():
            return _close(stream, event)
        case Tick():
            return _tick(stream, now)


def spoil(stream: ReportStream, now: float) -> ReportStream:
    """The stream after only some effects of a step could be applied: no blocks are held until a snapshot comes."""
    since = _since(stream, now)
    return replace(
        stream, stream_state=StreamState.AWAITING, assembly=None, asked_at=now, out_of_step_at=since, dropped=True
    )


def _receive(stream: ReportStream, event: Received, now: float, digest: int, others: int) -> Step:
    if event.connection != stream.connection or stream.stream_state in _DEAF:
        return stream, (Count(StreamEvent.FOREIGN),)
    match event.frame:
        case State() as state:
            return _state(stream, state, now, digest)
        case SnapshotFrame() as part:
            return _SNAPSHOTS[stream.stream_state](stream, part, now, others)
        case DeltaFrame() as delta:
            return _DELTAS[stream.stream_state](stream, delta, now, others)


def _open(stream: ReportStream, event: ConnectionOpened, now: float) -> Step:
    if event.connection < stream.connection:
        return stream, (Count(StreamEvent.FOREIGN),)
    hello = event.hello
    fresh = hello.epoch != stream.epoch
    known = not fresh and stream.stream_state is not StreamState.FORGOTTEN
    opened = replace(
        stream,
        rank=hello.rank,
        stream_state=StreamState.AWAITING,
        epoch=hello.epoch,
        connection=event.connection,
        assembly=None,
        heard_at=stream.heard_at if known else now,
        reported=stream.reported and known,
        asked_at=now,  # a Hello promises a snapshot
        attempts=0 if fresh else stream.attempts,
        out_of_step_at=now if fresh else _since(stream, now),
        dropped=fresh or stream.dropped,
    )
    return opened, (Drop(), Count(StreamEvent.EPOCH)) if fresh else ()


def _close(stream: ReportStream, event: ConnectionClosed) -> Step:
    if event.connection != stream.connection or stream.stream_state in (StreamState.UNKNOWN, StreamState.FORGOTTEN):
        return stream, ()
    return replace(stream, stream_state=StreamState.ADRIFT, assembly=None), ()


def _tick(stream: ReportStream, now: float) -> Step:
    if stream.stream_state in (StreamState.UNKNOWN, StreamState.FORGOTTEN):
        return stream, ()
    if now - stream.heard_at > FORGET_SECONDS:
        forgotten = replace(stream, stream_state=StreamState.FORGOTTEN, assembly=None, reported=False, dropped=True)
        return forgotten, (Drop(), Count(StreamEvent.EXPIRED))
    if stream.strayed(now) > FORGET_SECONDS and not stream.dropped:
        return replace(stream, dropped=True), (Drop(), Count(StreamEvent.EXPIRED))
    return stream, ()


def _since(stream: ReportStream, now: float) -> float:
    """Since when it has been out of step."""
    return now if stream.out_of_step_at is None else stream.out_of_step_at


# States.


def _state(stream: ReportStream, state: State, now: float, digest: int) -> Step:
    heard = replace(stream, heard_at=now, reported=True)
    after, effects = _STATES[stream.stream_state](heard, state, now, digest)
    return after, (Accept(state), *effects)


def _check(stream: ReportStream, state: State, now: float, digest: int) -> Step:
    if state.sequence > stream.sequence:
        return _resync(stream, now, StreamEvent.GAP)
    if state.sequence < stream.sequence:
        return stream, (Count(StreamEvent.DUPLICATE),)
    if state.digest != digest:
        return _resync(stream, now, StreamEvent.DIVERGENCE)
    return (replace(stream, attempts=0) if stream.attempts else stream), ()


def _remind(stream: ReportStream, _state: State, now: float, _digest: int) -> Step:
    if now - stream.asked_at < _retry_after(stream):
        return stream, ()
    return _resync(stream, now, StreamEvent.OVERDUE)


def _revive(stream: ReportStream, _state: State, now: float, _digest: int) -> Step:
    """A State after its blocks were dropped for silence, on a connection that never closed."""
    return _resync(stream, now, StreamEvent.GAP)


def _retry_after(stream: ReportStream) -> float:
    return backoff(stream.attempts, first=RETRY_SECONDS, longest=MAX_RETRY_SECONDS)


def _resync(stream: ReportStream, now: float, event: StreamEvent) -> Step:
    """Await a snapshot; ask for it at once, or when the last request is overdue."""
    awaiting = replace(stream, stream_state=StreamState.AWAITING, assembly=None, out_of_step_at=_since(stream, now))
    if stream.attempts and now - stream.asked_at < _retry_after(stream):
        return awaiting, (Count(event),)
    asking = replace(awaiting, asked_at=now, attempts=stream.attempts + 1)
    return asking, (Count(event), RequestResync(Resync(rank=stream.rank, reason=event.value)))


# Snapshots.


def _begin(stream: ReportStream, part: SnapshotFrame, now: float, others: int) -> Step:
    if part.part != 0:
        return _resync(stream, now, StreamEvent.BROKEN_SNAPSHOT)
    assembly = Assembly(sequence=part.sequence)
    opened = replace(stream, stream_state=StreamState.ASSEMBLING, assembly=assembly, out_of_step_at=_since(stream, now))
    return _extend(opened, part, now, others)


def _extend(stream: ReportStream, part: SnapshotFrame, now: float, others: int) -> Step:
    assembly = stream.assembly
    if assembly is None or part.part == 0 < len(assembly.parts):
        return _begin(stream, part, now, others)  # the agent starts over
    if part.part != len(assembly.parts) or part.sequence != assembly.sequence:
        return _resync(stream, now, StreamEvent.BROKEN_SNAPSHOT)
    size = assembly.size + len(part.data)
    if size + others > MAX_SNAPSHOT_BYTES or part.part >= MAX_PARTS:
        return _resync(stream, now, StreamEvent.TOO_LARGE)
    grown = replace(assembly, parts=(*assembly.parts, part), size=size)
    # While parts keep coming the snapshot is not overdue.
    return _complete(stream, grown) if part.last else (replace(stream, assembly=grown, asked_at=now), ())


def _complete(stream: ReportStream, assembly: Assembly) -> Step:
    sequence = assembly.held_back[-1].sequence if assembly.held_back else assembly.sequence
    live = replace(
        stream, stream_state=StreamState.LIVE, assembly=None, sequence=sequence, out_of_step_at=None, dropped=False
    )
    return live, (Replace(assembly.parts), *map(Apply, assembly.held_back))


# Deltas.


def _take(stream: ReportStream, delta: DeltaFrame, now: float, _others: int) -> Step:
    if delta.sequence <= stream.sequence:
        return stream, (Count(StreamEvent.DUPLICATE),)
    if delta.sequence > stream.sequence + 1:
        return _resync(stream, now, StreamEvent.GAP)
    return replace(stream, sequence=delta.sequence), (Apply(delta),)


def _hold_back(stream: ReportStream, delta: DeltaFrame, now: float, others: int) -> Step:
    assembly = stream.assembly or Assembly(sequence=stream.sequence)
    expected = assembly.sequence + len(assembly.held_back) + 1
    if delta.sequence < expected:
        return stream, (Count(StreamEvent.DUPLICATE),)
    if delta.sequence > expected:
        return _resync(stream, now, StreamEvent.GAP)
    size = assembly.size + len(delta.data)
    if size + others > MAX_SNAPSHOT_BYTES or len(assembly.held_back) >= MAX_HELD_BACK:
        return _resync(stream, now, StreamEvent.TOO_LARGE)
    return replace(stream, assembly=replace(assembly, held_back=(*assembly.held_back, delta), size=size)), ()


def _ignore(stream: ReportStream, _delta: DeltaFrame, _now: float, _others: int) -> Step:
    return stream, ()


_DEAF: Final = frozenset({StreamState.UNKNOWN, StreamState.ADRIFT})
"""States in which no connection is the stream's."""
_SNAPSHOTS: Final[Mapping[StreamState, Callable[[ReportStream, SnapshotFrame, float, int], Step]]] = {
    StreamState.AWAITING: _begin,
    StreamState.ASSEMBLING: _extend,
    StreamState.LIVE: _begin,
    StreamState.FORGOTTEN: _begin,
}
_DELTAS: Final[Mapping[StreamState, Callable[[ReportStream, DeltaFrame, float, int], Step]]] = {
    StreamState.AWAITING: _ignore,
    StreamState.ASSEMBLING: _hold_back,
    StreamState.LIVE: _take,
    StreamState.FORGOTTEN: _ignore,
}
_STATES: Final[Mapping[StreamState, Callable[[ReportStream, State, float, int], Step]]] = {
    StreamState.AWAITING: _remind,
    StreamState.ASSEMBLING: _remind,
    StreamState.LIVE: _check,
    StreamState.FORGOTTEN: _revive,
}
