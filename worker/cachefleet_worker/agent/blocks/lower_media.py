"""Which media below the device hold a block, by engine hash: bounded, the longest held leaves first.

A block may be in the host's memory and on disk at once; it is gone from the tier when the last of them says so. Some
connectors (LMCache) never say so, hence the bound. An engine may also tell how many blocks the host's memory has room
for (``LoadMetrics.host_blocks``).
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from cachefleet_worker.agent.blocks.block_events import EngineHash

MOST_BLOCKS: Final = 1 << 18
_HOST: Final = frozenset({"CPU", "CPU_PINNED"})
_FACTOR: Final = 15
"""Times the device's blocks: what a control plane lets a worker claim below it (`pools/block_bounds.py`)."""


def most_below(on_device: int) -> int:
    """Limit of blocks reported below a device with ``blocks`` blocks; 0 where that is unknown."""
    return min(MOST_BLOCKS, _FACTOR * on_device) if on_device else MOST_BLOCKS


class LowerMedia:
    """The media of each block held below the device; at most ``most`` blocks.

    Where ``host`` blocks is what the engine says it has room for in the host's memory, no more are held while nothing
    was announced in another medium.
    """

    def __init__(self, most: int = MOST_BLOCKS, host: int | None = None) -> None:
        self.most = most
        self.host = host
        self._elsewhere = False
        self._media: dict[EngineHash, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._media)

    @property
    def room(self) -> int:
        """Blocks that may be held now."""
        return self.most if self.host is None or self._elsewhere else min(self.most, self.host)

    def excess(self) -> list[EngineHash]:
        """Take out the blocks for which there is no room, the longest held ones; the others stay."""
        gone = list(islice(self._media, max(0, len(self._media) - self.room)))
        for block_hash in gone:
            del self._media[block_hash]
        return gone

    def store(self, block_hash: EngineHash, medium: str) -> EngineHash | None:
        """Note that a medium holds a block; the block to withdraw for that, where there are too many."""
        self._media[block_hash] = self._media.pop(block_hash, frozenset()) | {medium}
        self._elsewhere |= medium not in _HOST
        if len(self._media) <= self.room:
            return None
        oldest = next(iter(self._media))
        del self._media[oldest]
        return oldest

    def remove(self, block_hash: EngineHash, medium: str) -> bool:
        """Note that a medium lost a block; whether no other holds it."""
        left = self._media.get(block_hash, frozenset()) - {medium}
        if left:
            self._media[block_hash] = left
        else:
            self._media.pop(block_hash, None)
        return not left

    def forget(self, block_hash: EngineHash) -> None:
        """Note that a block is held no more."""
        self._media.pop(block_hash, None)

    def clear(self) -> None:
        """Note that nothing is held."""
        self._media.clear()
