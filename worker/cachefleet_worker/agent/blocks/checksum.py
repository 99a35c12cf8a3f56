"""Which hashes of the reported group the stream put on the device, to compare with the engine's own sums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefleet_core.digest import engine_number
from cachefleet_worker.agent.wire.kv_events import EngineHash, Total

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Checksum:
    """Blocks that are not reported (an image in them, unknown ancestry) are counted here like the others."""

    def __init__(self) -> None:
        self._hashes: set[EngineHash] = set()
        self._sum = 0

    def add(self, block_hashes: Iterable[EngineHash]) -> None:
        for block_hash in block_hashes:
            if block_hash not in self._hashes:
                self._hashes.add(block_hash)
                self._sum += engine_number(block_hash)

    def remove(self, block_hashes: Iterable[EngineHash]) -> None:
        for block_hash in block_hashes:
            if block_hash in self._hashes:
                self._hashes.discard(block_hash)
                self._sum -= engine_number(block_hash)

    def clear(self) -> None:
        self._hashes.clear()
        self._sum = 0

    def agrees(self, totals: Iterable[Total], group: int) -> bool:
        """Whether the engine has the same; a group it does not name has nothing."""
        said = next(((total.blocks, total.digest) for total in totals if total.group == group), (0, 0))
        return said == (len(self._hashes), self._sum & _MASK)
