"""The blocks that one engine rank holds, as block keys: engine hash in, key out.

A block counts as held only after the engine reported it stored and not removed since: a subset of what is resident.
Sets, not counts: vLLM keeps duplicate copies of a block, announces the removal of each and announces reused blocks as
stored again; the first removal withdraws the block.

Reported is the first full-attention group seen, in device and host memory. A chain ends at the first block whose
identity holds more than tokens, cache salt and LoRA name (an image, embeddings), and at blocks of another size than the
contract's. The key of a removed block is remembered (bounded), so that a child stored later can be keyed.

A *draft* is filled from the engine's snapshot and then adopted as a whole: only the differences are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from cachefleet_core.block_keys import NO_PARENT, BlockKey, BlockKeyer, Tier
from cachefleet_core.native import PYTHON, Code
from cachefleet_core.report_frames import Operation, Stored
from cachefleet_worker.agent.blocks.chains import Changes, chains
from cachefleet_worker.agent.blocks.checksum import Checksum
from cachefleet_worker.agent.blocks.hash_names import Block, Keyers, Names
from cachefleet_worker.agent.blocks.scope import Scope, salt_of, tier_of, usable_blocks
from cachefleet_worker.agent.wire.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    Total,
    Unreadable,
)

_BIT: Final = {Tier.DEVICE: 1, Tier.HOST: 2}


@dataclass(frozen=True, slots=True)
class _Place:
    """Position where a chain continues: after ``key``, ``depth`` blocks deep, in the keyer's namespace."""

    key: BlockKey
    depth: int
    keyer: BlockKeyer


class Residents:
    """The held set of one rank in one epoch.

    ``contract`` is the index contract's fingerprint. ``remembered`` bounds the keys kept of blocks no longer held,
    ``namespaces`` the keyers kept. ``code`` computes keys and the digest.
    """

    def __init__(
        self,
        index_key: bytes,
        contract: str,
        *,
        block_size: int,
        remembered: int = 262_144,
        namespaces: int = 1024,
        code: Code = PYTHON,
    ) -> None:
        keyers = Keyers(index_key, contract, block_size=block_size, ready=namespaces, make=code.keyer)
        self._start(code, keyers, Names(remembered=remembered), scope=Scope())

    def _start(self, code: Code, keyers: Keyers, names: Names, *, scope: Scope) -> None:
        self._code = code
        self._keyers = keyers
        self._block_size = keyers.block_size
        self._names = names
        self._scope = scope
        self._owners: dict[BlockKey, EngineHash] = {}
        self._checksum = Checksum()
        self._digest = code.digest()
        self._changes = Changes()
        self.held = 0
        """Number of distinct (key, tier) held."""
        self.counts: Counter[str] = Counter()
        """Events applied, and blocks not reported, by reason."""
        self.unkeyed = False
        """Whether the engine has stored blocks that have no key: of another group or medium, or beyond tokens."""

    @property
    def digest(self) -> int:
        """Digest of all held (key, tier), as States report it."""
        return self._digest.value

    @property
    def changed(self) -> bool:
        """Whether ``take`` would return operations."""
        return bool(self._changes)

    def apply(self, events: Iterable[Event]) -> None:
        """Apply KV events in order; an unreadable removal withdraws everything."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self.counts["cleared"] += 1
                    self.forget()
                case Unreadable():
                    self.counts["unreadable"] += 1
                    self.forget()

    def forget(self) -> None:
        """Withdraw everything held; the keys are remembered."""
        if self._names.live:
            self._changes.cleared()
        self._names.let_go_of_all()
        self._owners.clear()
        self._checksum.clear()
        self._digest.clear()
        self.held = 0

    def agrees(self, totals: Iterable[Total]) -> bool:
        """Whether the engine's totals equal the hashes seen here, reported or not."""
        return self._checksum.agrees(totals, self._scope.group)

    def draft(self) -> Residents:
        """An empty set that knows every hash known here."""
        draft = Residents.__new__(Residents)
        draft._start(self._code, self._keyers, self._names.above(), scope=self._scope.copy())  # noqa: SLF001 - one of our own
        return draft

    def adopt(self, draft: Residents) -> None:
        """Hold what a draft holds. Removals are reported before additions; a clear where that is shorter."""
        before = {tier: self._claims(tier) for tier in Tier}
        after = {tier: draft._claims(tier) for tier in Tier}
        gone = {tier: [key for key in before[tier] if key not in after[tier]] for tier in Tier}
        new = {tier: [key for key in after[tier] if key not in before[tier]] for tier in Tier}
        if sum(len(gone[tier]) + len(new[tier]) - len(after[tier]) for tier in Tier) > 0:
            self._changes.cleared()
            gone, new = {}, {tier: list(after[tier]) for tier in Tier}
        for tier, keys in gone.items():
            for key in keys:
                self._changes.removed(key, tier)
        for tier, keys in new.items():
            for key in keys:
                self._changes.stored(after[tier][key], key, tier)
        self._names.adopt(draft._names)
        self._owners, self._checksum, self._scope = draft._owners, draft._checksum, draft._scope
        self._digest, self.held = draft._digest, draft.held
        self.counts.update(draft.counts)
        self.unkeyed |= draft.unkeyed

    def _claims(self, tier: Tier) -> dict[BlockKey, BlockKey]:
        """The parent of every key held in a tier, in the order they were stored."""
        bit = _BIT[tier]
        return {block.key: block.parent for block in self._names.live.values() if block.tiers & bit}

    def take(self) -> list[Operation]:
        """The changes since the last call, in order."""
        return self._changes.take()

    def snapshot(self) -> list[Stored]:
        """Everything held, parents first, including changes that ``take`` has not returned yet."""
        blocks = list(self._names.live.values())
        return list(
            chain.from_iterable(chains((b for b in blocks if b.tiers & bit), tier) for tier, bit in _BIT.items())
        )

    # Stored

    def _store(self, event: BlockStored) -> None:
        tier = tier_of(event)
        if tier is None or not self._scope.covers_store(event):
            self.counts["other_medium" if tier is None else "other_group"] += 1
            self.unkeyed = True
            return
        self.counts["stored"] += 1
        if tier is Tier.DEVICE:
            self._checksum.add(event.block_hashes)
        if not event.token_ids:  # tiers below the device announce by hash alone
            self._store_known(event.block_hashes, tier)
            return
        sized = event.block_size == self._block_size
        if not sized or len(event.token_ids) != len(event.block_hashes) * self._block_size:
            self._skip(event.block_hashes, "block_size")
            return
        place = self._place(event)
        if place is None:
            return
        blocks = self._identify(event, place)
        for block_hash, block in zip(event.block_hashes, blocks, strict=False):
            self._hold(block_hash, block, tier)
        if len(blocks) < len(event.block_hashes):
            self._skip(event.block_hashes[len(blocks) :], "extra_key")

    def _place(self, event: BlockStored) -> _Place | None:
        """Where the event's chain begins; None where that is unknown."""
        if event.lora_id is not None and not event.lora_name:
            self._skip(event.block_hashes, "extra_key")
            return None
        if event.parent_block_hash is None:
            return _Place(NO_PARENT, 0, self._keyers.of(salt_of(event), event.lora_name or ""))
        return self._after(event.parent_block_hash, event.block_hashes)

    def _after(self, parent_hash: EngineHash, block_hashes: list[EngineHash]) -> _Place | None:
        known, parent = self._names.find(parent_hash)
        if parent is None:
            reason = "extra_key" if known else "unknown_parent"
            self.counts[reason] += len(block_hashes)
            if known:
                self.unkeyed = True
                self._names.mark(block_hashes)
            return None
        return _Place(parent.key, parent.depth + 1, parent.keyer)

    def _identify(self, event: BlockStored, place: _Place) -> list[Block]:
        """The event's blocks as far as they can be reported; only unknown ones are hashed."""
        usable = usable_blocks(event, place.depth)
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
        for key in place.keyer.keys(tokens, previous, depth):
            blocks.append(Block(key, previous, depth, place.keyer))
            previous, depth = key, depth + 1
        return blocks

    def _store_known(self, block_hashes: list[EngineHash], tier: Tier) -> None:
        for block_hash in block_hashes:
            _, block = self._names.find(block_hash)
            if block is None:
                self.counts["unknown_hash"] += 1
            else:
                self._hold(block_hash, block, tier)

    def _hold(self, block_hash: EngineHash, block: Block, tier: Tier) -> None:
        block = self._names.live.get(block_hash, block)
        owner = self._owners.get(block.key)
        if owner is not None and owner != block_hash:
            self._release(owner)  # two hashes with one key: the adapter of that name was replaced
        if block.tiers & _BIT[tier]:
            return
        self._names.hold(block_hash, block)
        self._owners[block.key] = block_hash
        block.tiers |= _BIT[tier]
        self._digest.add((block.key,), tier)
        self.held += 1
        self._changes.stored(block.parent, block.key, tier)

    # Removed

    def _remove(self, event: BlockRemoved) -> None:
        tier = tier_of(event)
        if tier is None or not self._scope.covers_removal(event):
            return
        self.counts["removed"] += 1
        if tier is Tier.DEVICE:
            self._checksum.remove(event.block_hashes)
        for block_hash in event.block_hashes:
            self._drop(block_hash, tier)

    def _drop(self, block_hash: EngineHash, tier: Tier) -> None:
        block = self._names.live.get(block_hash)
        if block is None or not block.tiers & _BIT[tier]:
            return
        block.tiers &= ~_BIT[tier]
        self._digest.remove((block.key,), tier)
        self.held -= 1
        self._changes.removed(block.key, tier)
        if not block.tiers:
            del self._owners[block.key]
            self._names.let_go(block_hash)

    def _release(self, block_hash: EngineHash) -> None:
        for tier in Tier:
            self._drop(block_hash, tier)

    def _skip(self, block_hashes: list[EngineHash], reason: str) -> None:
        self.unkeyed |= reason == "extra_key"
        self.counts[reason] += len(block_hashes)
        self._names.mark(block_hashes)
