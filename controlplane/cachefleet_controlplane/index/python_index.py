"""The block index in Python: which worker holds which block.

``PythonIndex`` is the reference that other implementations are tested against, and runs where native code is not
installed.

*Structure.* For each tier a dict from block key to a bit mask of worker slots, and for each slot the set of keys it
holds. A match is one walk over the prompt's keys that narrows a mask of the candidates until it is empty: its cost does
not depend on how many workers or blocks there are, and a block missing in the middle ends a worker's prefix exactly
there. The sets cost some memory (about 60 bytes a held block) and buy three things: adding or removing a key twice
changes nothing, a worker can be forgotten by visiting its own keys alone, and the digest covers exactly what is held.

*Forgetting* takes constant time: the slot is retired, so no match looks at its bits any more, and its keys are swept
from the dicts a slice at each later operation. A worker that comes back gets another slot.

*Bounds.* At most ``max_workers`` workers (retired slots not counted) and ``max_held`` held (key, tier) pairs, retired
ones included; beyond that ``apply`` raises IndexFullError and has changed nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice, repeat
from operator import or_
from typing import Final

from cachefleet_controlplane.index.frame_ingest import delta_operations, snapshot_chains
from cachefleet_controlplane.index.operation_checks import keys_in, tier_in
from cachefleet_controlplane.index.protocol import IndexFullError, IndexStats, Keys, OperationError, WorkerId
from cachefleet_core.block_keys import MASK, NO_PARENT, BlockKey, Tier, unpack_keys
from cachefleet_core.digest import Digest
from cachefleet_core.hit_rule import HitRule, hit_blocks, window_key
from cachefleet_core.report_frames import Cleared, Operation, Removed, Stored

SWEEP_KEYS: Final = 8192
"""Keys of retired slots swept at each operation."""
SAMPLED_KEYS: Final = 1024
MAX_INTERNED_MASKS: Final = 65536
_BYTES_A_KEY: Final = 140
_BYTES_A_HOLDING: Final = 60


@dataclass(slots=True)
class _Slot:
    """One worker in the index until it is forgotten: its bit, and per tier the keys it holds."""

    bit: int
    held: tuple[set[int], ...] = field(default_factory=lambda: tuple(set() for _ in Tier))
    digest: Digest = field(default_factory=Digest)

    def __len__(self) -> int:
        return sum(map(len, self.held))


class PythonIndex:
    """The BlockIndex in Python; its structure is in the module's docstring."""

    def __init__(self, *, max_workers: int = 4096, max_held: int = 50_000_000) -> None:
        self._max_workers = max_workers
        self._max_held = max_held
        self._tables: tuple[dict[int, int], ...] = tuple({} for _ in Tier)
        self._slots: dict[WorkerId, _Slot] = {}
        self._retired: deque[_Slot] = deque()
        self._free_bits: list[int] = []
        self._bits_made = 0
        self._held = 0
        self._masks: dict[int, int] = {}

    def apply(self, worker: WorkerId, operation: Operation) -> None:
        """Apply one operation, and sweep up to SWEEP_KEYS keys of retired slots."""
        match operation:
            case Stored():
                self._store(worker, operation)
            case Removed():
                self._remove(worker, operation)
            case Cleared():
                self.forget(worker)
        self._sweep(SWEEP_KEYS)

    def ingest(self, worker: WorkerId, delta: bytes) -> None:
        """Apply a Delta frame, after checking that all of it fits."""
        operations = delta_operations(delta)
        self._room_for(worker, [operation for operation in operations if isinstance(operation, Stored)])
        for operation in operations:
            self.apply(worker, operation)

    def replace(self, worker: WorkerId, parts: Sequence[bytes]) -> None:
        """Apply a snapshot, after checking that all of it fits."""
        chains = snapshot_chains(parts)
        self._room_for(worker, chains, replaces=True)
        self.forget(worker)
        for stored in chains:
            self.apply(worker, stored)

    def match(
        self,
        keys: Keys,
        candidates: Sequence[WorkerId],
        *,
        tier: Tier = Tier.DEVICE,
        limit: int | None = None,
        rules: Sequence[HitRule] = (),
        usable: int | None = None,
    ) -> list[int]:
        """Matched keys of each candidate, in one walk over the keys for all of them; then each by its rule."""
        slots = self._slots
        bits = [slots[worker].bit if worker in slots else 0 for worker in candidates]
        depths = dict.fromkeys(bits, 0)
        alive, depth = reduce(or_, bits, 0), 0
        asked = unpack_keys(keys) if isinstance(keys, bytes) else keys
        for mask in map(self._tables[tier].get, asked[:limit], repeat(0)):
            if alive & mask != alive:
                _settle(depths, alive & ~mask, depth)
                alive &= mask
                if not alive:
                    break
            depth += 1
        _settle(depths, alive, depth)
        matched = [depths[bit] for bit in bits]
        if rules:
            most = min(len(asked[:limit]), len(asked) if usable is None else usable)
            for at, rule in enumerate(rules):
                if not rule.plain:
                    matched[at] = self._by_rule(rule, asked, bits[at], min(matched[at], most) if rule.full else most)
        return matched

    def _by_rule(self, rule: HitRule, keys: Sequence[BlockKey], bit: int, blocks: int) -> int:
        """Of which of the first ``blocks`` keys, all of which full attention allows, a hit would be."""
        held = self._tables[Tier.DEVICE].get
        return hit_blocks(rule, blocks, lambda window, at: bool(held(window_key(keys[at], window), 0) & bit))

    def loadable(
        self, keys: Keys, candidates: Sequence[WorkerId], matched: Sequence[int], rules: Sequence[HitRule] = ()
    ) -> list[int]:
        """Keys after the matched ones of each candidate below the device, in a walk for each that holds any there."""
        if not self._tables[Tier.HOST]:
            return [0] * len(candidates)
        asked = unpack_keys(keys) if isinstance(keys, bytes) else keys
        plain = [rule.plain for rule in rules] or [True] * len(candidates)
        rows = zip(candidates, matched, plain, strict=True)
        return [self._below(worker, asked[depth:]) if alone else 0 for worker, depth, alone in rows]

    def _below(self, worker: WorkerId, keys: Sequence[BlockKey]) -> int:
        slot = self._slots.get(worker)
        held = slot.held[Tier.HOST] if slot is not None else ()
        return next((at for at, key in enumerate(keys) if key not in held), len(keys))

    def forget(self, worker: WorkerId) -> None:
        """Retire a worker's slot; later operations sweep its keys."""
        slot = self._slots.pop(worker, None)
        if slot is not None:
            self._retired.append(slot)

    def digest(self, worker: WorkerId) -> int:
        """Digest of a worker's blocks; kept up to date, so it takes constant time."""
        slot = self._slots.get(worker)
        return slot.digest.value if slot is not None else 0

    def held(self, worker: WorkerId) -> int:
        """How many (key, tier) a worker holds."""
        slot = self._slots.get(worker)
        return 0 if slot is None else len(slot)

    def held_below(self, worker: WorkerId) -> int:
        """How many of these are below the device."""
        slot = self._slots.get(worker)
        return len(slot.held[Tier.HOST]) if slot is not None else 0

    def shares(self) -> Mapping[WorkerId, float]:
        """Blocks that the fleet would lose with each worker, estimated from SAMPLED_KEYS keys of each tier."""
        live = self._live_mask()
        return {worker: len(slot) * self._exclusivity(slot, live) for worker, slot in self._slots.items() if len(slot)}

    def _exclusivity(self, slot: _Slot, live: int) -> float:
        # Keys are uniformly distributed, so the first in a set's own order are a fair sample.
        shares = [
            1 / (table[key] & live).bit_count()
            for table, held in zip(self._tables, slot.held, strict=True)
            for key in islice(held, SAMPLED_KEYS)
        ]
        return sum(shares) / len(shares)

    def stats(self) -> IndexStats:
        """Size by worker and in all; memory is estimated from counts."""
        keys = sum(map(len, self._tables))
        return IndexStats(
            held={worker: len(slot) for worker, slot in self._slots.items()},
            keys=keys,
            bytes=keys * _BYTES_A_KEY + self._held * _BYTES_A_HOLDING,
        )

    def _store(self, worker: WorkerId, operation: Stored) -> None:
        keys = keys_in(operation)
        unique: set[int] = set(keys)
        if len(unique) != len(keys) or operation.parent in unique:
            raise OperationError("keys: a key occurs twice in one chain")
        if not NO_PARENT <= operation.parent <= MASK:
            raise OperationError("parent: must be a block key or 0")
        tier = tier_in(operation)
        slot = self._slots.get(worker)
        fresh = unique if slot is None else unique - slot.held[tier]
        self._make_room(len(fresh))
        if slot is None:
            slot = self._begin(worker)
        self._hold(slot, fresh, tier)

    def _hold(self, slot: _Slot, fresh: set[int], tier: Tier) -> None:
        table = self._tables[tier]
        slot.held[tier].update(fresh)
        slot.digest.add(fresh, tier)
        self._held += len(fresh)
        new = fresh.difference(table)
        intern = self._masks.setdefault
        for key in fresh - new:
            mask = table[key] | slot.bit
            table[key] = intern(mask, mask)
        table.update(dict.fromkeys(new, slot.bit))
        if len(self._masks) > MAX_INTERNED_MASKS:
            self._masks.clear()

    def _remove(self, worker: WorkerId, operation: Removed) -> None:
        keys, tier = keys_in(operation), tier_in(operation)
        slot = self._slots.get(worker)
        if slot is None:
            return
        gone = slot.held[tier].intersection(keys)
        slot.held[tier].difference_update(gone)
        slot.digest.remove(gone, tier)
        self._drop(slot.bit, gone, tier)

    def _drop(self, bit: int, gone: Collection[int], tier: Tier) -> None:
        table = self._tables[tier]
        intern = self._masks.setdefault
        for key in gone:
            mask = table[key] ^ bit
            if mask:
                table[key] = intern(mask, mask)
            else:
                del table[key]
        self._held -= len(gone)

    def _room_for(self, worker: WorkerId, chains: Sequence[Stored], *, replaces: bool = False) -> None:
        """Check that all chains fit. What else a frame removes is not counted, so the check is never too lenient."""
        slot = self._slots.get(worker)
        if chains and slot is None:
            self._check_workers()
        own = len(slot) if slot is not None and replaces else 0
        if self._held - own + sum(len(stored.keys) for stored in chains) // 8 <= self._max_held:
            return
        kept = None if replaces else slot
        wanted = sum(
            len(set(stored.unpack()).difference(() if kept is None else kept.held[stored.tier])) for stored in chains
        )
        self._make_room(wanted - own)

    def _make_room(self, wanted: int) -> None:
        excess = self._held + wanted - self._max_held
        if excess > 0:
            self._sweep(excess)
        if self._held + wanted > self._max_held:
            raise IndexFullError(f"the index holds {self._held} blocks, its bound is {self._max_held}")

    def _begin(self, worker: WorkerId) -> _Slot:
        self._check_workers()
        slot = self._slots[worker] = _Slot(self._new_bit())
        return slot

    def _check_workers(self) -> None:
        if len(self._slots) >= self._max_workers:
            raise IndexFullError(f"the index has {len(self._slots)} workers, its bound is {self._max_workers}")

    def _new_bit(self) -> int:
        if self._free_bits:
            return self._free_bits.pop()
        self._bits_made += 1
        return 1 << (self._bits_made - 1)

    def _live_mask(self) -> int:
        return reduce(or_, (slot.bit for slot in self._slots.values()), 0)

    def _sweep(self, budget: int) -> None:
        while self._retired and budget > 0:
            slot = self._retired[0]
            for tier in Tier:
                held = slot.held[tier]
                gone = [held.pop() for _ in range(min(budget, len(held)))]
                self._drop(slot.bit, gone, tier)
                budget -= len(gone)
            if not len(slot):
                self._retired.popleft()
                self._free_bits.append(slot.bit)


def _settle(depths: dict[int, int], mask: int, depth: int) -> None:
    """Set the depth of the workers of ``mask``, whose prefix ends there."""
    while mask:
        bit = mask & -mask
        depths[bit] = depth
        mask ^= bit
