"""The operations of received frames, decoded in Python: what native code is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from cachefleet_core.report_frames import Delta, FrameError, Operation, Snapshot, Stored, decode_up


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
