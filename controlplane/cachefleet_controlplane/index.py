"""Which worker holds which block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from cachefleet_core.blocks import BlockKey, Tier
from cachefleet_core.reports import Operation

WorkerId = NewType("WorkerId", str)


def worker_id(pool: str, worker: str, rank: int = 0) -> WorkerId:
    """One rank of one worker, fleet-wide: ``namespace/pool/worker#rank``; ``pool`` is "namespace/name"."""
    return WorkerId(f"{pool}/{worker}#{rank}")


@dataclass(frozen=True, slots=True)
class IndexStats:
    """How much an index holds: (key, tier) pairs of each worker, distinct pairs, and an estimate of its memory."""

    held: Mapping[WorkerId, int]
    keys: int
    bytes: int


class BlockIndex(Protocol):
    """Which worker holds which block, by block key alone."""

    def apply(self, worker: WorkerId, operation: Operation) -> None: ...

    def match(
        self,
        keys: Sequence[BlockKey],
        candidates: Sequence[WorkerId],
        *,
        tier: Tier = Tier.DEVICE,
        limit: int | None = None,
    ) -> list[int]: ...

    def forget(self, worker: WorkerId) -> None: ...

    def digest(self, worker: WorkerId) -> int: ...

    def stats(self) -> IndexStats: ...
