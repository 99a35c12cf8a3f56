"""What the rest of the control plane knows of an index: which worker holds which block, by block key alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from cachefleet_core.blocks import BlockKey, Tier
from cachefleet_core.reports import Operation

WorkerId = NewType("WorkerId", str)

Keys = Sequence[BlockKey] | bytes
"""A prompt's block keys, one by one or packed as ``blocks.pack_keys`` does."""


def worker_id(pool: str, worker: str, rank: int = 0) -> WorkerId:
    """One rank of one worker, fleet-wide: ``namespace/pool/worker#rank``; ``pool`` is "namespace/name"."""
    return WorkerId(f"{pool}/{worker}#{rank}")


class OperationError(ValueError):
    """An operation that no sound stream contains; the message names the field. Nothing was applied."""


class IndexDefectError(RuntimeError):
    """The index's own code failed. Where it was changing something, it has begun anew, empty."""


class IndexFullError(RuntimeError):
    """The index has reached one of its bounds. Nothing was applied."""


@dataclass(frozen=True, slots=True)
class IndexStats:
    """How much an index holds: (key, tier) pairs of each worker, distinct pairs, and an estimate of its memory."""

    held: Mapping[WorkerId, int]
    keys: int
    bytes: int


class BlockIndex(Protocol):
    """It holds sets: an operation applied twice is the same as once. Workers come into being with their first block."""

    def apply(self, worker: WorkerId, operation: Operation) -> None:
        """Take one operation over. OperationError or IndexFullError: nothing has changed."""

    def ingest(self, worker: WorkerId, delta: bytes) -> None:
        """Take all operations of a Delta frame over, in order. FrameError or IndexFullError: nothing has changed."""

    def replace(self, worker: WorkerId, parts: Sequence[bytes]) -> None:
        """Hold exactly what the Snapshot frames ``parts`` say, which are all of one snapshot's and in order.

        FrameError or IndexFullError: nothing has changed.
        """

    def match(
        self,
        keys: Keys,
        candidates: Sequence[WorkerId],
        *,
        tier: Tier = Tier.DEVICE,
        limit: int | None = None,
    ) -> list[int]:
        """For each candidate how many of the first ``limit`` keys it holds in ``tier`` before the first it lacks."""
        ...

    def forget(self, worker: WorkerId) -> None:
        """It holds nothing any more; takes constant time."""

    def digest(self, worker: WorkerId) -> int:
        """``digest.Digest`` of all (key, tier) it holds; 0 for a worker that holds nothing."""
        ...

    def shares(self) -> Mapping[WorkerId, float]:
        """For each worker that holds anything, the sum over its blocks of 1 / number of workers that hold the block.

        That is what the fleet would lose with it, in blocks; estimated.
        """
        ...

    def stats(self) -> IndexStats: ...
