"""The blocks that one engine rank holds, as block keys: engine hash in, key out.

A block counts as held only after the engine reported it stored and not removed since: a subset of what is resident.
Sets, not counts: an engine may keep duplicate copies of a block, announce the removal of each, and announce reused
blocks as stored again; the first removal withdraws the block.

A block is reported once for each way in which it is held (``scope.Claim``): on the device in every full-attention
group, there in every group of one window, below it (host memory, disk). Which blocks a group holds is known by hash;
the key of a hash is told by full attention's events, whose tokens line up with their hashes, or where a model has
none, by those of the other groups that do. A chain ends at the first block whose identity holds more than tokens,
cache salt, adapter and media (embeddings), and at blocks of another size or lookahead than the contract's. An
adapter's blocks are reported where its revision is told. The key of a removed block is remembered (bounded), so that a
child stored later can be keyed.

Blocks below the device are known by hash alone, whatever their events say besides: connectors leave out salt, adapter
and media. What was never seen on the device is not reported; only the worker plugin's snapshot names them itself.

A *draft* is filled from the engine's snapshot and then adopted as a whole: only the differences are reported.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.hit_rule import CacheGroup, HitRule
from cachefleet_core.native import empty_digest
from cachefleet_core.report_frames import Operation, Stored
from cachefleet_worker.agent.blocks.block_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    Total,
    Unreadable,
)
from cachefleet_worker.agent.blocks.chains import Changes, Link, chains
from cachefleet_worker.agent.blocks.checksum import Checksum, agree
from cachefleet_worker.agent.blocks.hash_names import Block, Keyers, Names
from cachefleet_worker.agent.blocks.lower_media import MOST_BLOCKS, LowerMedia
from cachefleet_worker.agent.blocks.naming import Naming
from cachefleet_worker.agent.blocks.scope import Claim, Scope, medium_of, tier_of


class Residents:
    """The held set of one rank in one epoch.

    ``contract`` is the index contract's fingerprint, ``block_size`` and ``lookahead`` are its. ``groups`` are the
    engine's KV cache groups where it tells them.
    ``remembered`` bounds the keys kept of blocks no longer held, ``namespaces`` the keyers, ``below``
    the blocks below the device. NativeError where the native module cannot be used.
    """

    def __init__(
        self,
        index_key: bytes,
        contract: str,
        *,
        block_size: int,
        lookahead: int = 0,
        groups: Iterable[CacheGroup] = (),
        remembered: int = 262_144,
        namespaces: int = 1024,
        below: int = MOST_BLOCKS,
    ) -> None:
        keyers = Keyers(index_key, contract, block_size=block_size, lookahead=lookahead, ready=namespaces)
        self._start(keyers, Names(remembered=remembered), scope=Scope(block_size, groups))
        self._lower = LowerMedia(below)

    def _start(self, keyers: Keyers, names: Names, *, scope: Scope) -> None:
        self._keyers = keyers
        self._names = names
        self._scope = scope
        self._owners: dict[BlockKey, EngineHash] = {}
        self._sums: defaultdict[int, Checksum] = defaultdict(Checksum)
        self._digest, self._changes = empty_digest(), Changes()
        self._lower, self._drafted = LowerMedia(), False
        self.held = 0
        """Number of distinct (key, tier) held."""
        self.counts: Counter[str] = Counter()
        """Events applied, and blocks not reported, by reason."""
        self._naming = Naming(keyers, names, self.counts)
        self._unkeyed = False
        self._unnamed = False
        """Whether a window left out some blocks of an event, which only full attention's could name."""

    @property
    def unkeyed(self) -> bool:
        """Whether the engine has stored blocks without a key: of another medium, not understood, or beyond tokens."""
        return self._unkeyed or self._naming.unkeyed or (self._unnamed and not self._scope.full)

    @property
    def other_lookahead(self) -> int | None:
        """Tokens after a block that the engine's hashes cover; None where the contract is right about that."""
        return self._naming.other_lookahead

    @property
    def rule(self) -> HitRule:
        """What a hit on this engine needs."""
        return self._scope.rule

    @property
    def unknown(self) -> str:
        """Why nothing is reported; "" where hits can be told from blocks."""
        return self._scope.unknown

    @property
    def digest(self) -> int:
        """Digest of all held (key, tier), as States report it."""
        return self._digest.value

    @property
    def changed(self) -> bool:
        """Whether ``take`` would return operations."""
        return bool(self._changes)

    @property
    def removed(self) -> float:
        """How many blocks were removed since ``take``, as a share of these and those held; of a clear nothing."""
        removals = self._changes.removals
        return removals / (self.held + removals) if removals else 0.0

    def apply(self, events: Iterable[Event]) -> None:
        """Apply KV events in order; an unreadable removal withdraws everything."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared() | Unreadable():
                    self.counts["cleared" if isinstance(event, AllBlocksCleared) else "unreadable"] += 1
                    self.forget()

    def forget(self) -> None:
        """Withdraw everything held; the keys are remembered."""
        self._withdraw()
        self._sums.clear()

    def _withdraw(self) -> None:
        if self._names.live:
            self._changes.cleared()
        self._names.let_go_of_all()
        self._owners.clear()
        self._lower.clear()
        self._digest.clear()
        self.held = 0

    def bound_below(self, blocks: int) -> None:
        """Hold no more blocks below the device than the engine says it has room for; withdraw the longest held."""
        if self._lower.host == blocks:
            return
        self._lower.host = blocks
        for block_hash in self._lower.excess():
            for claim in self._scope.in_tier[Tier.HOST]:
                self._drop(block_hash, claim)

    def agrees(self, totals: Iterable[Total]) -> bool:
        """Whether the engine's totals equal the hashes seen here, reported or not."""
        return bool(self._scope.unknown) or agree(self._sums, totals, self._scope.full)

    def draft(self) -> Residents:
        """An empty set that knows every hash known here."""
        draft = Residents.__new__(Residents)
        draft._start(self._keyers, self._names.above(), scope=self._scope.copy())  # noqa: SLF001 - one of our own
        draft._lower, draft._drafted = LowerMedia(self._lower.most, self._lower.host), True  # noqa: SLF001
        return draft

    def adopt(self, draft: Residents) -> None:
        """Hold what a draft holds. Removals are reported before additions; a clear where that is shorter."""
        self._changes.replaced(self._claimed(), draft._claimed())
        self._names.adopt(draft._names)
        self._owners, self._sums, self._scope = draft._owners, draft._sums, draft._scope
        self._digest, self.held, self._lower = draft._digest, draft.held, draft._lower
        self.counts.update(draft.counts)
        self._unkeyed |= draft.unkeyed
        self._unnamed |= draft._unnamed
        self._naming.other_lookahead = draft.other_lookahead

    def _claimed(self) -> dict[Tier, dict[BlockKey, BlockKey]]:
        """By tier the key before each key held, in the order of claims and as stored."""
        held: dict[Tier, dict[BlockKey, BlockKey]] = {tier: {} for tier in Tier}
        for claim in self._scope.claims:
            held[claim.tier].update(self._links(claim))
        return held

    def _links(self, claim: Claim) -> Iterator[Link]:
        for block in self._names.live.values():
            if block.claims & claim.bit:
                yield Link(claim.key(block.key), claim.key(block.parent))

    def take(self) -> list[Operation]:
        """The changes since the last call, in order."""
        return self._changes.take()

    def snapshot(self) -> list[Stored]:
        """Everything held, parents first, including changes that ``take`` has not returned yet."""
        return [each for claim in self._scope.claims for each in chains(self._links(claim), claim.tier)]

    # Stored

    def _store(self, event: BlockStored) -> None:
        tier, group = tier_of(event), event.group_idx or 0
        if tier is Tier.DEVICE and self._scope.learn(event):
            self._withdraw()
            self._settle_all()
        ignored = self._scope.ignored(event, tier)
        if ignored:
            self.counts[ignored] += 1
            self._unkeyed |= tier is not Tier.HOST
            return
        self.counts["stored"] += 1
        if tier is Tier.DEVICE:
            self._sum(group).add(event.block_hashes)
        if event.token_ids and self._scope.names(group) and (tier is Tier.DEVICE or self._drafted):
            self._name(event)
        else:
            self._store_known(event)

    def _name(self, event: BlockStored) -> None:
        if self._naming.lines_up(event):
            for block_hash, block in zip(event.block_hashes, self._naming.blocks(event), strict=False):
                self._settle(block_hash, block, event)
        elif event.block_size == self._keyers.block_size and not self._scope.full:  # a window left out some blocks
            self._unnamed = True
            self._store_known(event)
        else:
            self._naming.skip(event.block_hashes, "block_size")

    def _store_known(self, event: BlockStored) -> None:
        below = tier_of(event) is Tier.HOST
        for block_hash in event.block_hashes:
            _, block = self._names.find(block_hash)
            if block is not None:
                self._settle(block_hash, block, event)
            elif not self._scope.full or event.group_idx in self._scope.full or below:
                self.counts["unknown_hash"] += 1

    def _settle(self, block_hash: EngineHash, block: Block, event: BlockStored) -> None:
        """Hold a block that a tier has now."""
        if tier_of(event) is Tier.DEVICE:
            self._settle_device(block_hash, block)
            return
        for claim in self._scope.in_tier[Tier.HOST]:
            self._hold(block_hash, block, claim)
            gone = self._lower.store(block_hash, medium_of(event))
            if gone is not None:
                self._drop(gone, claim)

    def _settle_device(self, block_hash: EngineHash, block: Block) -> None:
        """Hold it in every way that is complete with it."""
        alone, held = len(self._scope.groups) == 1, False
        for claim in self._scope.in_tier[Tier.DEVICE]:
            if alone or all(block_hash in self._sum(group) for group in claim.groups):
                self._hold(block_hash, block, claim)
                held = True
        if not held:
            self._names.keep(block_hash, block)

    def _settle_all(self) -> None:
        for block_hash in {each for own in self._sums.values() for each in own}:
            _, block = self._names.find(block_hash)
            if block is not None:
                self._settle_device(block_hash, block)

    def _hold(self, block_hash: EngineHash, block: Block, claim: Claim) -> None:
        block = self._names.live.get(block_hash, block)
        owner = self._owners.get(block.key)
        if owner is not None and owner != block_hash:
            self._release(owner)  # two hashes with one key
        if block.claims & claim.bit:
            return
        self._names.hold(block_hash, block)
        self._owners[block.key] = block_hash
        block.claims |= claim.bit
        key = claim.key(block.key)
        self._digest.add((key,), claim.tier)
        self.held += 1
        self._changes.stored(claim.key(block.parent), key, claim.tier)

    # Removed

    def _remove(self, event: BlockRemoved) -> None:
        tier, groups = tier_of(event), self._scope.removed_from(event)
        if tier is None or not groups:
            return
        self.counts["removed"] += 1
        if tier is Tier.DEVICE:
            for group in groups:
                self._sum(group).remove(event.block_hashes)
        claims = [claim for claim in self._scope.in_tier[tier] if claim.groups & groups]
        for block_hash in event.block_hashes if claims else ():
            if tier is Tier.HOST and not self._lower.remove(block_hash, medium_of(event)):
                continue
            for claim in claims:
                self._drop(block_hash, claim)

    def _drop(self, block_hash: EngineHash, claim: Claim) -> None:
        block = self._names.live.get(block_hash)
        if block is None or not block.claims & claim.bit:
            return
        block.claims &= ~claim.bit
        key = claim.key(block.key)
        self._digest.remove((key,), claim.tier)
        self.held -= 1
        self._changes.removed(key, claim.tier)
        if not block.claims:
            del self._owners[block.key]
            self._names.let_go(block_hash)

    def _release(self, block_hash: EngineHash) -> None:
        self._lower.forget(block_hash)
        for claim in self._scope.claims:
            self._drop(block_hash, claim)

    def _sum(self, group: int) -> Checksum:
        return self._sums[group]
