"""The block index: which worker holds which block, by block key alone. In native code (``native/``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

import cachefleet_native

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.hit_rule import HitRule
from cachefleet_core.report_frames import Cleared, FrameError, Operation, Removed, Stored

Keys = Sequence[BlockKey] | bytes
"""A prompt's block keys, as a sequence or packed by ``block_keys.pack_keys``."""


MOST_BYTES: Final = 1 << 33
"""Of an index's memory: some 350 million blocks."""
MOST_HELD: Final = 1 << 32


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


class BlockIndex:
    """Sets of (key, tier) by worker (``docs/block-index.md``): an operation applied twice is the same as once.

    A worker is added by its first block. Calls raise IndexDefectError where native code fails.
    """

    def __init__(self, *, max_workers: int = 4096, max_held: int = MOST_HELD, max_bytes: int = MOST_BYTES) -> None:
        """``max_bytes`` bounds the memory in use; ``max_held`` the (worker, key, tier) that share it."""
        self.native = cachefleet_native.Index(max_workers=max_workers, max_held=max_held, max_bytes=max_bytes)

    def apply(self, worker: WorkerId, operation: Operation) -> None:
        """Apply one operation. OperationError or IndexFullError: nothing has changed."""
        with _errors():
            match operation:
                case Stored(parent, keys, tier):
                    self.native.store(worker, parent, keys, tier)
                case Removed(keys, tier):
                    self.native.remove(worker, keys, tier)
                case Cleared():
                    self.native.clear(worker)

    def ingest(self, worker: WorkerId, delta: bytes) -> None:
        """Apply all operations of a Delta frame, in order. FrameError or IndexFullError: nothing has changed."""
        with _errors():
            self.native.ingest(worker, delta)

    def replace(self, worker: WorkerId, parts: Sequence[bytes]) -> None:
        """Replace a worker's blocks by those of the Snapshot frames ``parts``: all of one snapshot, in order.

        FrameError or IndexFullError: nothing has changed.
        """
        with _errors():
            self.native.replace(worker, list(parts))

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
        with _errors():
            return self.native.match(keys, candidates, tier=tier, limit=limit, rules=native_rules(rules), usable=usable)

    def loadable(
        self, keys: Keys, candidates: Sequence[WorkerId], matched: Sequence[int], rules: Sequence[HitRule] = ()
    ) -> list[int]:
        """For each candidate, how many keys after the first ``matched`` it holds below the device, up to one it lacks.

        0 where a candidate's rule is not plain: below the device only full attention's blocks are known.
        """
        with _errors():
            return self.native.loadable(keys, candidates, matched, native_rules(rules))

    def forget(self, worker: WorkerId) -> None:
        """Remove a worker and its blocks; takes constant time."""
        self.native.forget(worker)

    def digest(self, worker: WorkerId) -> int:
        """``digest.Digest`` of all (key, tier) of a worker; 0 for one that holds nothing."""
        return self.native.digest(worker)

    def held(self, worker: WorkerId) -> int:
        """How many (key, tier) a worker holds; takes constant time."""
        return self.native.held(worker)

    def held_below(self, worker: WorkerId) -> int:
        """How many of these are below the device; takes constant time."""
        return self.native.held_below(worker)

    def shares(self) -> Mapping[WorkerId, float]:
        """For each worker with blocks, the sum over its blocks of 1 / number of workers that hold the block.

        That is what the fleet would lose with it, in blocks; estimated.
        """
        return cast("dict[WorkerId, float]", self.native.shares())

    def stats(self) -> IndexStats:
        """Size by worker and in all."""
        held, keys, size = self.native.stats()
        return IndexStats(held=cast("dict[WorkerId, int]", held), keys=keys, bytes=size)


def native_rules(rules: Sequence[HitRule]) -> list[tuple[bool, tuple[int, ...], int]]:
    """Rules as native code takes them; none where all are plain."""
    return [] if all(rule.plain for rule in rules) else [(rule.full, rule.windows, rule.dropped) for rule in rules]


@contextmanager
def _errors() -> Iterator[None]:
    """Raise native errors as the this module's exceptions."""
    try:
        yield
    except cachefleet_native.OperationError as error:
        raise OperationError(str(error)) from None
    except cachefleet_native.IndexFullError as error:
        raise IndexFullError(str(error)) from None
    except cachefleet_native.FrameError as error:
        raise FrameError(str(error)) from None
    except cachefleet_native.InternalError as error:
        raise IndexDefectError(str(error)) from error
