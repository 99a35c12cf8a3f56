"""Long random histories of an index: chains that part, holes, lies about parents, restarts, in sizes that matter.

Property tests find what is small; this finds what needs runs of thousands of blocks, many workers and much churn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.report_frames import Cleared, Operation
from tests.controlplane.chains import removed, stored

Chains = list[list[BlockKey]]


class History:
    """Workers, chains and operations over them, all by one seed."""

    def __init__(self, seed: int, *, operations: int = 300) -> None:
        self._random = Random(seed)
        self._operations = operations
        self.workers = [WorkerId(f"w{n}") for n in range(self._random.choice([1, 3, 8, 70, 140]))]
        self.chains = self._forest()

    def operations(self) -> Iterator[tuple[WorkerId, Operation | None]]:
        """What happens, to whom; None is a worker forgotten."""
        for _ in range(self._operations):
            yield self._random.choice(self.workers), self._operation()

    def questions(self) -> Iterator[tuple[list[BlockKey], list[WorkerId], int | None]]:
        """Prompts, whole or from their middle, for some workers, with limits."""
        chance = self._random
        for chain in self.chains:
            start = chance.choice([0, 0, 0, chance.randrange(len(chain))])
            asked = chance.sample(self.workers, chance.randint(1, len(self.workers)))
            yield chain[start:], asked, chance.choice([None, None, 7, 100, -3])

    def _forest(self) -> Chains:
        chance = self._random
        chains = [self._keys(chance.choice([20, 300, 6000]))]
        for _ in range(chance.choice([0, 3, 12])):
            trunk = chance.choice(chains)
            chains.append(trunk[: chance.randrange(len(trunk))] + self._keys(chance.choice([1, 20, 600])))
        return chains

    def _keys(self, count: int) -> list[BlockKey]:
        return [BlockKey(self._random.getrandbits(64) | 1) for _ in range(count)]

    def _operation(self) -> Operation | None:
        chance = self._random
        chain = chance.choice(self.chains)
        start = chance.randrange(len(chain))
        keys = chain[start : start + chance.choice([1, 1, 5, 40, 500, 5000])]
        tier = chance.choice([Tier.DEVICE, Tier.DEVICE, Tier.HOST])
        kind = chance.random()
        if kind < 0.45:
            return self._store(chain, start, keys, tier)
        if kind < 0.9:
            return removed(self._order(keys), tier)
        return Cleared() if kind < 0.95 else None

    def _store(self, chain: list[BlockKey], start: int, keys: list[BlockKey], tier: Tier) -> Operation:
        chance = self._random
        if chance.random() < 0.4:
            keys = chain[: start + 1]
            start = 0
        parent = (
            chain[start - 1] if start and chance.random() < 0.8 else chance.choice([0, chance.choice(chain), 12345])
        )
        if chance.random() < 0.05:
            chance.shuffle(keys)
        return stored(keys, 0 if parent in keys else parent, tier)

    def _order(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        chance = self._random
        orders = (keys[::-1], keys, chance.sample(keys, max(1, len(keys) // 2)), keys[::2], [*keys, *keys])
        return list(chance.choice(orders))
