"""The block hashes on the device in each group, with their sums, to compare with the engine's own totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cachefleet_core.digest import engine_number
from cachefleet_worker.agent.blocks.block_events import EngineHash, Total

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Checksum:
    """One group's. Also counts blocks that are not reported (with an image, or of unknown ancestry)."""

    def __init__(self) -> None:
        self._hashes: set[EngineHash] = set()
        self._sum = 0

    def __contains__(self, block_hash: EngineHash) -> bool:
        return block_hash in self._hashes

    def __iter__(self) -> Iterator[EngineHash]:
        return iter(self._hashes)

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

    @property
    def total(self) -> tuple[int, int]:
        """Count and sum."""
        return len(self._hashes), self._sum & _MASK


def agree(sums: dict[int, Checksum], totals: Iterable[Total], full: frozenset[int]) -> bool:
    """Whether counts and sums equal the engine's.

    A full-attention group missing from ``totals`` counts as empty; of others an older plugin does not tell.
    """
    said = {total.group: (total.blocks, total.digest) for total in totals}
    return all(
        said.get(group, (0, 0)) == own.total for group, own in sums.items() if group in said or group in full
    ) and all(said[group] == (0, 0) for group in full - sums.keys() if group in said)
