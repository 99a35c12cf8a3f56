"""The last changes of a worker's blocks, kept as received, to tell why a block is gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from cachefleet_controlplane.index.frame_ingest import delta_operations
from cachefleet_core.block_keys import Tier
from cachefleet_core.report_frames import Cleared, FrameError, Operation, Removed

MAX_BYTES: Final = 64 * 1024
"""Delta frames kept of one worker, in bytes: some 8,000 blocks."""
_KEY_BYTES: Final = 8


class RemovalHistory:
    """The last Delta frames of one worker; times in seconds on one clock. Frames are decoded only by ``lost``."""

    __slots__ = ("_bytes", "_deltas", "began")

    def __init__(self) -> None:
        self.began = float("-inf")
        """When its epoch began."""
        self._deltas: deque[tuple[float, bytes]] = deque()
        self._bytes = 0

    def begin(self, now: float) -> None:
        """Start a new epoch: earlier changes are dropped."""
        self.began = now
        self._deltas.clear()
        self._bytes = 0

    def note(self, delta: bytes, now: float) -> None:
        """Keep a received Delta frame; the oldest are dropped beyond MAX_BYTES."""
        self._deltas.append((now, delta))
        self._bytes += len(delta)
        while self._bytes > MAX_BYTES:
            self._bytes -= len(self._deltas.popleft()[1])

    def lost(self, keys: bytes, *, since: float) -> bool:
        """Whether any of these packed keys was removed at ``since`` or later, as far as frames are kept."""
        asked = set(_split(keys))
        recent = (delta for at, delta in reversed(self._deltas) if at >= since)
        return bool(asked) and any(_removes(delta, asked) for delta in recent)


def _removes(delta: bytes, asked: set[bytes]) -> bool:
    for operation in _operations(delta):
        if isinstance(operation, Cleared):
            return True
        gone = isinstance(operation, Removed) and operation.tier is Tier.DEVICE
        if gone and not asked.isdisjoint(_split(operation.keys)):
            return True
    return False


def _operations(delta: bytes) -> tuple[Operation, ...]:
    """The operations of a frame; none where it is malformed, as a frame held back and not yet checked may be."""
    try:
        return delta_operations(delta)
    except FrameError:
        return ()


def _split(keys: bytes) -> Iterator[bytes]:
    return (keys[at : at + _KEY_BYTES] for at in range(0, len(keys), _KEY_BYTES))
