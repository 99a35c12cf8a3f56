"""Gives blocks their keys: from an event's tokens where they line up with its hashes, else by a hash known before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from cachefleet_core.block_identity.media import MediaKeyer
from cachefleet_core.block_keys import NO_PARENT, BlockKey
from cachefleet_worker.agent.blocks.block_events import BlockStored, EngineHash
from cachefleet_worker.agent.blocks.block_identity import adapter_of, media_of, salt_of
from cachefleet_worker.agent.blocks.hash_names import Block, Keyers, Names

_UNKEYED: Final = frozenset({"extra_key", "adapter_revision", "lookahead"})
"""Reasons for which blocks that serve prompts have no key."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Position where a chain continues: after ``key``, ``depth`` blocks deep, in the keyer's namespace."""

    key: BlockKey
    depth: int
    keyer: MediaKeyer


class Naming:
    """Names the blocks of events; ``counts`` gets those that have no key, by reason."""

    def __init__(self, keyers: Keyers, names: Names, counts: Counter[str]) -> None:
        self._keyers = keyers
        self._block_size, self._lookahead = keyers.block_size, keyers.lookahead
        self._names = names
        self._counts = counts
        self.unkeyed = False
        """Whether there were blocks that have no key."""
        self.other_lookahead: int | None = None
        """Tokens after a block that the engine's hashes cover, where the contract says another number."""

    def lines_up(self, event: BlockStored) -> bool:
        """Whether an event's tokens are those of its blocks, of the contract's size."""
        return (
            event.block_size == self._block_size and len(event.token_ids) == len(event.block_hashes) * self._block_size
        )

    def blocks(self, event: BlockStored) -> list[Block]:
        """The event's blocks as far as they can be named; only unknown ones are hashed."""
        if event.lookahead != self._lookahead and event.block_hashes:
            self.other_lookahead = event.lookahead if event.lookahead >= 0 else self.other_lookahead
            self.skip(event.block_hashes, "lookahead")
            return []
        place = self._place(event)
        if place is None:
            return []
        blocks = self._identify(event, place)
        if len(blocks) < len(event.block_hashes):
            self.skip(event.block_hashes[len(blocks) :], "extra_key")
        return blocks

    def skip(self, block_hashes: list[EngineHash], reason: str) -> None:
        """These blocks, and so their children, have no key."""
        self.unkeyed |= reason in _UNKEYED
        self._counts[reason] += len(block_hashes)
        self._names.mark(block_hashes)

    def _place(self, event: BlockStored) -> _Place | None:
        """Where the event's chain begins; None where that is unknown."""
        adapter = adapter_of(event)
        if adapter is None:
            self.skip(event.block_hashes, "adapter_revision")
            return None
        if event.parent_block_hash is None:
            return _Place(NO_PARENT, 0, self._keyers.of(salt_of(event), adapter))
        return self._after(event.parent_block_hash, event.block_hashes)

    def _after(self, parent_hash: EngineHash, block_hashes: list[EngineHash]) -> _Place | None:
        known, parent = self._names.find(parent_hash)
        if parent is not None:
            return _Place(parent.key, parent.depth + 1, parent.keyer)
        if known:
            self.skip(block_hashes, "extra_key")
        else:
            self._counts["unknown_parent"] += len(block_hashes)
        return None

    def _identify(self, event: BlockStored, place: _Place) -> list[Block]:
        media = media_of(event, place.depth)
        usable = len(media)
        blocks: list[Block] = []
        for block_hash in event.block_hashes[:usable]:
            _, block = self._names.find(block_hash)
            if block is None:
                break
            blocks.append(block)
        if len(blocks) == usable:
            return blocks
        previous = blocks[-1].key if blocks else place.key
        start, depth = len(blocks), place.depth + len(blocks)
        tokens = event.token_ids[start * self._block_size : usable * self._block_size]
        if event.lookahead_token_ids:
            tokens = tokens + event.lookahead_token_ids[usable - 1]
        for key in place.keyer.keys(tokens, media[start:], previous, depth):
            blocks.append(Block(key, previous, depth, place.keyer))
            previous, depth = key, depth + 1
        return blocks
