"""Held keys as report operations: changes merged into chains, and a whole set as chains, parents first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from cachefleet_core.block_keys import NO_PARENT, BlockKey, Tier, pack_keys
from cachefleet_core.report_frames import Cleared, Operation, Removed, Stored

MAX_CHAIN_KEYS: Final = 8192
"""Longest chain or removal, so that several always fit a frame."""


Held = Mapping[Tier, Mapping[BlockKey, BlockKey]]
"""By tier the held keys, each with the key before it."""


class Link(NamedTuple):
    """A held block's key, and the key before it."""

    key: BlockKey
    parent: BlockKey


class Changes:
    """Operations in the order they happened; neighbours that continue each other are merged."""

    __slots__ = ("_keys", "_operations", "_parent", "_tier", "removals")

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._keys: list[BlockKey] = []
        self._parent: BlockKey | None = None  # of the open chain; None while removals are open
        self._tier = Tier.DEVICE
        self.removals = 0
        """Keys removed since the last call of ``take``, or the last clear."""

    def stored(self, parent: BlockKey, key: BlockKey, tier: Tier) -> None:
        """Add a stored key; it extends the open chain where ``parent`` is that chain's last key."""
        continues = self._keys and self._parent is not None and self._keys[-1] == parent and self._tier is tier
        if not continues or len(self._keys) >= MAX_CHAIN_KEYS:
            self._close()
            self._parent, self._tier = parent, tier
        self._keys.append(key)

    def removed(self, key: BlockKey, tier: Tier) -> None:
        """Add a removed key; removals from one tier are merged."""
        if self._parent is not None or self._tier is not tier or len(self._keys) >= MAX_CHAIN_KEYS:
            self._close()
            self._parent, self._tier = None, tier
        self._keys.append(key)
        self.removals += 1

    def cleared(self) -> None:
        """Replace all operations so far with one Cleared."""
        self._keys, self._operations, self.removals = [], [Cleared()], 0

    def replaced(self, before: Held, after: Held) -> None:
        """Add what differs between what was held and what is, removals first; a clear where that is shorter."""
        gone = {tier: [key for key in before[tier] if key not in after[tier]] for tier in Tier}
        new = {tier: [key for key in after[tier] if key not in before[tier]] for tier in Tier}
        if sum(len(gone[tier]) + len(new[tier]) - len(after[tier]) for tier in Tier) > 0:
            self.cleared()
            gone, new = {}, {tier: list(after[tier]) for tier in Tier}
        for tier, keys in gone.items():
            for key in keys:
                self.removed(key, tier)
        for tier, keys in new.items():
            for key in keys:
                self.stored(after[tier][key], key, tier)

    def take(self) -> list[Operation]:
        """All operations since the last call, in order."""
        self._close()
        operations, self._operations, self.removals = self._operations, [], 0
        return operations

    def __bool__(self) -> bool:
        return bool(self._keys or self._operations)

    def _close(self) -> None:
        if self._keys:
            packed = pack_keys(self._keys)
            operation = (
                Removed(packed, self._tier) if self._parent is None else Stored(self._parent, packed, self._tier)
            )
            self._operations.append(operation)
            self._keys = []


def chains(blocks: Iterable[Link], tier: Tier) -> Iterator[Stored]:
    """All ``blocks`` once, as chains; a chain that continues another comes after it."""
    children: dict[BlockKey, list[BlockKey]] = {}
    parents: dict[BlockKey, BlockKey] = {}
    for block in blocks:
        parents[block.key] = block.parent
        children.setdefault(block.parent, []).append(block.key)
    starts = [(parent, key) for key, parent in parents.items() if parent == NO_PARENT or parent not in parents]
    while starts:
        parent, key = starts.pop()
        run = [key]
        while len(run) < MAX_CHAIN_KEYS and (following := children.get(run[-1])):
            starts.extend((run[-1], branch) for branch in following[1:])
            run.append(following[0])
        starts.extend((run[-1], rest) for rest in children.get(run[-1], ()))
        yield Stored(parent, pack_keys(run), tier)
