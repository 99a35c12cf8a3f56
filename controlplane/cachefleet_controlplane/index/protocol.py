"""The interface of a block index: which worker holds which block, by block key alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.hit_rule import HitRule
from cachefleet_core.report_frames import Operation

WorkerId = NewType("WorkerId", str)

Keys = Sequence[BlockKey] | bytes
"""A prompt's block keys, as a sequence or packed by ``blocks.pack_keys``."""


def worker_id(pool: str, worker: str, rank: int = 0) -> WorkerId:
    """The fleet-wide id of one rank of one worker: ``namespace/pool/worker#rank``; ``pool`` is "namespace/name"."""
    return WorkerId(f"{pool}/{worker}#{rank}")


class OperationError(ValueError):
    """An operation that no valid stream contains; the message names the field. Nothing was applied."""


class IndexDefectError(RuntimeError):
    """The index's own code failed. If it was changing something, it is empty now."""


class IndexFullError(RuntimeError):
    """The index has reached one of its bounds. Nothing was applied."""


@dataclass(frozen=True, slots=True)
class IndexStats:
    """Size of an index: (key, tier) pairs of each worker, distinct pairs, and an estimate of its memory in bytes."""

    held: Mapping[WorkerId, int]
    keys: int
    bytes: int


class BlockIndex(Protocol):
    """Sets of (key, tier) by worker: an operation applied twice is the same as once. A worker is added by its first
    block.
    """

    def apply(self, worker: WorkerId, operation: Operation) -> None:
        """Apply one operation. OperationError or IndexFullError: nothing has changed."""

    def ingest(self, worker: WorkerId, delta: bytes) -> None:
        """Apply all operations of a Delta frame, in order. FrameError or IndexFullError: nothing has changed."""

    def replace(self, worker: WorkerId, parts: Sequence[bytes]) -> None:
        """Replace a worker's blocks by those of the Snapshot frames ``parts``: all of one snapshot, in order.

        FrameError or IndexFullError: nothing has changed.
        """

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
        """For each candidate, how many of the first ``limit`` keys it holds in ``tier`` before the first it lacks.

        ``rules`` has one for each candidate, where any is not plain: of one that is not, how many of the first
        ``usable`` keys a hit would be (``hit_rule.hit_blocks``).
        """
        ...

    def loadable(
        self, keys: Keys, candidates: Sequence[WorkerId], matched: Sequence[int], rules: Sequence[HitRule] = ()
    ) -> list[int]:
        """For each candidate, how many keys after the first ``matched`` it holds below the device, up to one it lacks.

        0 where a candidate's rule is not plain: below the device only full attention's blocks are known.
        """
        ...

    def forget(self, worker: WorkerId) -> None:
        """Remove a worker and its blocks; takes constant time."""

    def digest(self, worker: WorkerId) -> int:
        """``digest.Digest`` of all (key, tier) of a worker; 0 for one that holds nothing."""
        ...

    def held(self, worker: WorkerId) -> int:
        """How many (key, tier) a worker holds; takes constant time."""
        ...

    def held_below(self, worker: WorkerId) -> int:
        """How many of these are below the device; takes constant time."""
        ...

    def shares(self) -> Mapping[WorkerId, float]:
        """For each worker with blocks, the sum over its blocks of 1 / number of workers that hold the block.

        That is what the fleet would lose with it, in blocks; estimated.
        """
        ...

    def stats(self) -> IndexStats:
        """Size by worker and in all."""
        ...
