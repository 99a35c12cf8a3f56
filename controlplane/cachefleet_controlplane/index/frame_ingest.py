"""Received frames of report streams: what their heads announce, with their blocks still encoded.

A stream's state depends on a frame's rank and number alone. The rest of a Delta or a Snapshot part is decoded and
checked by the index that applies it, whole or not at all; frames that are not applied are not decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_core.report_fields import Count, Rank
from cachefleet_core.report_frames import (
    MAX_FRAME_BYTES,
    Delta,
    FrameError,
    Hello,
    Loads,
    Operation,
    Snapshot,
    State,
    Stored,
    decode_up,
)


class _DeltaHead(Struct, tag="delta", frozen=True):
    sequence: Count
    rank: Rank = 0


class _SnapshotHead(Struct, tag="snapshot", frozen=True):
    sequence: Count
    part: Count
    last: bool
    rank: Rank = 0


class DeltaFrame(Struct, frozen=True):
    """A Delta of a stream; ``data`` is the whole frame."""

    rank: int
    sequence: int
    data: bytes


class SnapshotFrame(Struct, frozen=True):
    """One part of a Snapshot; ``data`` is the whole frame."""

    rank: int
    sequence: int
    part: int
    last: bool
    data: bytes


Report = SnapshotFrame | DeltaFrame | State
"""Frames that may follow a Hello."""

_head: msgspec.msgpack.Decoder[Hello | State | Loads | _DeltaHead | _SnapshotHead] = msgspec.msgpack.Decoder(
    Hello | State | Loads | _DeltaHead | _SnapshotHead
)
_KINDS: Final = {Hello: "hello", SnapshotFrame: "snapshot", DeltaFrame: "delta", State: "state", Loads: "loads"}


def read(data: bytes) -> Hello | Loads | Report:
    """Decode a Hello, a State, Loads, or the head of another frame. FrameError where that is malformed."""
    match _read(data):
        case _DeltaHead(sequence, rank):
            return DeltaFrame(rank, sequence, data)
        case _SnapshotHead(sequence, part, last, rank):
            return SnapshotFrame(rank, sequence, part, last, data)
        case frame:
            return frame


def kind(frame: Hello | Loads | Report) -> str:
    """The name of a frame's type."""
    return _KINDS[type(frame)]


def delta_operations(data: bytes) -> tuple[Operation, ...]:
    """The operations of a Delta frame, or FrameError."""
    frame = decode_up(data)
    if not isinstance(frame, Delta):
        raise FrameError("type: not a delta")
    return frame.operations


def snapshot_chains(parts: Sequence[bytes]) -> tuple[Stored, ...]:
    """The chains of a snapshot. FrameError where ``parts`` are not all parts of one snapshot, in order."""
    frames = [_snapshot(part) for part in parts]
    stream = {(frame.rank, frame.sequence) for frame in frames}
    order = [(frame.part, frame.last) for frame in frames]
    if len(stream) != 1 or order != [(number, number + 1 == len(frames)) for number in range(len(frames))]:
        raise FrameError("part: not the parts of one snapshot")
    return tuple(chain.from_iterable(frame.chains for frame in frames))


def _snapshot(data: bytes) -> Snapshot:
    frame = decode_up(data)
    if not isinstance(frame, Snapshot):
        raise FrameError("type: not a snapshot")
    return frame


def _read(data: bytes) -> Hello | State | Loads | _DeltaHead | _SnapshotHead:
    try:
        if len(data) <= MAX_FRAME_BYTES:
            return _head.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # the full decoder's error is more exact
    decode_up(data)
    raise FrameError("not a frame")
