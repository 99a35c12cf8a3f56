"""The block index as plain sets: what native code must answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from cachefleet_controlplane.index.block_index import IndexFullError, IndexStats, Keys, OperationError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_core.block_keys import MASK, NO_PARENT, BlockKey, Tier, unpack_keys
from cachefleet_core.hit_rule import HitRule, hit_blocks, window_key
from cachefleet_core.report_frames import Cleared, Operation, Removed, Stored
from tests.reference.digest import Digest
from tests.reference.frame_operations import delta_operations, snapshot_chains

Block = tuple[int, Tier]


class ReferenceIndex:
    """The (key, tier) of each worker."""

    def __init__(self, *, max_workers: int = 4096, max_held: int = 1 << 32) -> None:
        self._max_workers, self._max_held = max_workers, max_held
        self._held: dict[WorkerId, set[Block]] = {}

    def apply(self, worker: WorkerId, operation: Operation) -> None:
        match operation:
            case Stored():
                stored = _blocks(operation)
                _check_chain(operation)
                self._check_room(worker, self.blocks(worker) | stored)
                self._held.setdefault(worker, set()).update(stored)
            case Removed():
                gone = _blocks(operation)
                self._held.get(worker, set()).difference_update(gone)
            case Cleared():
                self.forget(worker)

    def ingest(self, worker: WorkerId, delta: bytes) -> None:
        """All of a frame, after checking that what it stores has room even if it removes nothing."""
        operations = delta_operations(delta)
        stored = [_blocks(operation) for operation in operations if isinstance(operation, Stored)]
        if stored:
            self._check_room(worker, self.blocks(worker).union(*stored))
        for operation in operations:
            self.apply(worker, operation)

    def replace(self, worker: WorkerId, parts: Sequence[bytes]) -> None:
        chains = snapshot_chains(parts)
        if chains:
            self._check_room(worker, set().union(*map(_blocks, chains)))
        self.forget(worker)
        for chain in chains:
            self.apply(worker, chain)

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
        asked = _unpacked(keys)
        matched = [_prefix(asked[:limit], tier, self.blocks(worker)) for worker in candidates]
        most = min(len(asked[:limit]), len(asked) if usable is None else usable)
        for place, (worker, rule) in enumerate(zip(candidates, rules, strict=False)):
            if not rule.plain:
                full = min(matched[place], most) if rule.full else most
                matched[place] = self._hit(rule, asked, self.blocks(worker), full)
        return matched

    def loadable(
        self, keys: Keys, candidates: Sequence[WorkerId], matched: Sequence[int], rules: Sequence[HitRule] = ()
    ) -> list[int]:
        asked, plain = _unpacked(keys), [rule.plain for rule in rules] or [True] * len(candidates)
        return [
            _prefix(asked[depth:], Tier.HOST, self.blocks(worker)) if alone else 0
            for worker, depth, alone in zip(candidates, matched, plain, strict=True)
        ]

    def forget(self, worker: WorkerId) -> None:
        self._held.pop(worker, None)

    def digest(self, worker: WorkerId) -> int:
        digest = Digest()
        for tier in Tier:
            digest.add([key for key, of in self.blocks(worker) if of is tier], tier)
        return digest.value

    def held(self, worker: WorkerId) -> int:
        return len(self.blocks(worker))

    def held_below(self, worker: WorkerId) -> int:
        return sum(tier is Tier.HOST for _, tier in self.blocks(worker))

    def shares(self) -> Mapping[WorkerId, float]:
        holders = Counter(block for held in self._held.values() for block in held)
        return {worker: sum(1 / holders[block] for block in held) for worker, held in self._held.items() if held}

    def stats(self) -> IndexStats:
        held = {worker: len(blocks) for worker, blocks in self._held.items()}
        return IndexStats(held=held, keys=len(set().union(*self._held.values())), bytes=1)

    def blocks(self, worker: WorkerId) -> set[Block]:
        """All that a worker holds; not to be changed."""
        return self._held.get(worker, set())

    def _hit(self, rule: HitRule, keys: Sequence[BlockKey], held: AbstractSet[Block], blocks: int) -> int:
        return hit_blocks(rule, blocks, lambda window, at: (window_key(keys[at], window), Tier.DEVICE) in held)

    def _check_room(self, worker: WorkerId, wanted: AbstractSet[Block]) -> None:
        """``wanted`` is all that a worker would hold."""
        if worker not in self._held and len(self._held) >= self._max_workers:
            raise IndexFullError("workers")
        others = sum(len(held) for known, held in self._held.items() if known != worker)
        if others + len(wanted) > self._max_held:
            raise IndexFullError("blocks")


def _unpacked(keys: Keys) -> Sequence[BlockKey]:
    return unpack_keys(keys) if isinstance(keys, bytes) else keys


def _prefix(keys: Sequence[BlockKey], tier: Tier, held: AbstractSet[Block]) -> int:
    return next((at for at, key in enumerate(keys) if (key, tier) not in held), len(keys))


def _blocks(operation: Stored | Removed) -> set[Block]:
    """OperationError where its keys or its tier are none."""
    try:
        keys, tier = operation.unpack(), Tier(operation.tier)
    except ValueError as error:
        raise OperationError(f"keys or tier: {error}") from error
    if not keys or 0 in keys:
        raise OperationError("keys: must not be empty, and 0 is not a block key")
    return {(key, tier) for key in keys}


def _check_chain(operation: Stored) -> None:
    keys = operation.unpack()
    if len(set(keys)) != len(keys) or operation.parent in keys:
        raise OperationError("keys: a key occurs twice in one chain")
    if not NO_PARENT <= operation.parent <= MASK:
        raise OperationError("parent: must be a block key or 0")
