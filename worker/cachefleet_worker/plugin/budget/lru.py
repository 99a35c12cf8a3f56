"""Eviction order by block: pure.

For models with one full-attention group, where a chain that loses blocks from its end only hits a little less. The
order is that of vLLM's own free queue: least recently freed first, a chain's end before its beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice


class BlockOrder:
    """Idle cached blocks by number, least recently used first, and the bound on them.

    Methods that can exceed the bound return the blocks to evict, which are already forgotten here.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._idle: dict[int, None] = {}
        self._standing: set[int] = set()
        """Cached blocks that are or were idle, or belong to a kept chain: a chain too large to keep that also uses them
        does not evict them."""

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, block: int) -> bool:
        return block in self._idle

    def touched(self, blocks: Iterable[int]) -> None:
        """Blocks are used by one more request."""
        idle = self._idle
        if idle:
            for block in blocks:
                if block in idle:
                    del idle[block]

    def freed(self, idle: list[int], shared: Collection[int]) -> list[int]:
        """One chain was freed, its end first: its cached blocks that are idle now, and those still in use."""
        limit = self.limit
        if limit is not None and len(idle) + len(shared) > limit:
            return self._refused(idle, limit)
        self._idle.update(dict.fromkeys(idle))
        self._standing.update(idle, shared)
        return self._excess()

    def gone(self, blocks: Collection[int]) -> None:
        """Blocks are no longer cached, or were allocated anew."""
        if self._standing:
            self.touched(blocks)
            self._standing.difference_update(blocks)

    def clear(self) -> None:
        """Nothing is cached any more."""
        self._idle.clear()
        self._standing.clear()

    def resize(self, limit: int | None) -> list[int]:
        """Set the bound, in blocks; None is no bound."""
        self.limit = limit
        return self._excess()

    def _refused(self, chain: list[int], limit: int) -> list[int]:
        """Evict what a chain over the whole bound cached; blocks it found stay, as far as the bound allows."""
        found = [block for block in chain if block in self._standing]
        excess = max(0, len(self._idle) + len(found) - limit)
        self._idle.update(dict.fromkeys(found[excess:]))
        victims = [block for block in chain if block not in self._standing] + found[:excess]
        self._standing.difference_update(victims)
        return victims

    def _excess(self) -> list[int]:
        if self.limit is None or len(self._idle) <= self.limit:
            return []
        victims = list(islice(self._idle, len(self._idle) - self.limit))
        for block in victims:
            del self._idle[block]
        self._standing.difference_update(victims)
        return victims
