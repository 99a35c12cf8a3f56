"""Blocks with what names them, and which of them others come after: pure."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

Hash = int | bytes


class Traits(Struct, frozen=True, gc=False):
    """A block's identity besides its tokens; shared between blocks."""

    block_size: int
    lora_id: int | None = None
    lora_name: str | None = None
    extra_keys: tuple[Any, ...] | None = None


class Block(Struct, frozen=True, gc=False):
    """A resident block; ``tokens`` are native u32, b"" where the block is known by its hash alone.

    ``ahead`` are the tokens after it that its hash covers, in the same form.
    """

    parent: Hash | None
    tokens: bytes
    traits: Traits
    ahead: bytes = b""


class HasBlocks(Protocol):
    """A tier set."""

    blocks: dict[Hash, Block]


class Family:
    """The ancestry of one group's blocks, over all its tier sets."""

    def __init__(self, max_tombstones: int, max_leaves: int) -> None:
        self._max_tombstones = max_tombstones
        self._max_leaves = max_leaves
        self.tier_sets: list[HasBlocks] = []
        self.children: dict[Hash, int] = {}  # number of (block, tier set) and tombstones right after a hash
        self.tombstones: dict[Hash, Block] = {}
        self.leaves: dict[Hash, Block] = {}

    def find(self, block_hash: Hash) -> Block | None:
        """A block that a tier set has, or a tombstone."""
        for tier in self.tier_sets:
            if block_hash in tier.blocks:
                return tier.blocks[block_hash]
        return self.tombstones.get(block_hash)

    def leave(self, block_hash: Hash, block: Block) -> None:
        """A block was removed from a tier set; keep it as a tombstone where it has children, else as a leaf."""
        needed = block_hash in self.children and block.tokens
        if needed and not any(block_hash in tier.blocks for tier in self.tier_sets):
            self.tombstones[block_hash] = block
            if len(self.tombstones) > self._max_tombstones:
                oldest = next(iter(self.tombstones))
                self._unlink(self.tombstones.pop(oldest).parent)
            return
        if self._max_leaves and block.tokens:
            self.leaves[block_hash] = block
            if len(self.leaves) > self._max_leaves:
                self._unlink(self.leaves.pop(next(iter(self.leaves))).parent)
            return
        self._unlink(block.parent)

    def counted(self, block_hash: Hash) -> bool:
        """Whether a block that is stored now counts as a child already; it is no tombstone any more."""
        return (self.tombstones.pop(block_hash, None) or self.leaves.pop(block_hash, None)) is not None

    def link(self, parent: Hash) -> None:
        """Count one child more."""
        if parent in self.leaves:
            self.tombstones[parent] = self.leaves.pop(parent)
        self.children[parent] = self.children.get(parent, 0) + 1

    def _unlink(self, parent: Hash | None) -> None:
        """Count one child less; drop tombstones without children."""
        while parent is not None:
            left = self.children.pop(parent, 0) - 1
            if left > 0:
                self.children[parent] = left
                return
            tombstone = self.tombstones.pop(parent, None)
            parent = tombstone.parent if tombstone else None

    def clear(self) -> None:
        """Nothing is resident any more."""
        self.children, self.tombstones, self.leaves = {}, {}, {}
