"""Received frames of report streams: what their heads announce, with their blocks still encoded.

A stream's state depends on a frame's rank and number alone. The rest of a Delta or a Snapshot part is decoded and
checked by the index that applies it, whole or not at all; frames that are not applied are not decoded.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_core.report_fields import Count, Rank
from cachefleet_core.report_frames import (
    MAX_FRAME_BYTES,
    FrameError,
    Hello,
    Loads,
    State,
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


def _read(data: bytes) -> Hello | State | Loads | _DeltaHead | _SnapshotHead:
    try:
        if len(data) <= MAX_FRAME_BYTES:
            return _head.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # the full decoder's error is more exact
    decode_up(data)
    raise FrameError("not a frame")
