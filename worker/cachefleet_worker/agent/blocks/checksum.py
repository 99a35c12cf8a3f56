"""Count and sum of the block hashes on the device in the reported group, to compare with the engine's own totals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefleet_core.digest import engine_number
from cachefleet_worker.agent.wire.kv_events import EngineHash, Total

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Checksum:
    """Also counts blocks that are not reported (with an image, or of unknown ancestry)."""

    def __init__(self) -> None:
        self._hashes: set[EngineHash] = set()
        self._sum = 0

    def add(self, block_hashes: Iterable[EngineHash]) -> None:
        """Add hashes; those counted already change nothing."""
        for block_hash in block_hashes:
            if block_hash not in self._hashes:
                self._hashes.add(block_hash)
                self._sum += engine_number(block_hash)

    def remove(self, block_hashes: Iterable[EngineHash]) -> None:
        """Remove hashes; unknown ones change nothing."""
        for block_hash in block_hashes:
            if block_hash in self._hashes:
                self._hashes.discard(block_hash)
                self._sum -= engine_number(block_hash)

    def clear(self) -> None:
        """Remove all hashes."""
        self._hashes.clear()
        self._sum = 0

    def agrees(self, totals: Iterable[Total], group: int) -> bool:
        """Whether count and sum equal the engine's; a group missing from ``totals`` counts as empty."""
        said = next(((total.blocks, total.digest) for total in totals if total.group == group), (0, 0))
        return said == (len(self._hashes), self._sum & _MASK)
