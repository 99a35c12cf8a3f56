"""The BlockIndex in native code (``native/``): the answers of ``PythonIndex``, faster and in less memory.

Importing this module needs ``cachefleet_native``; ``wiring`` checks that it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import cachefleet_native

from cachefleet_controlplane.index.protocol import (
    IndexDefectError,
    IndexFullError,
    IndexStats,
    Keys,
    OperationError,
    WorkerId,
)
from cachefleet_core.block_keys import Tier
from cachefleet_core.hit_rule import HitRule
from cachefleet_core.report_frames import Cleared, FrameError, Operation, Removed, Stored


class NativeIndex:
    """A BlockIndex in native code, described in ``docs/index.md``. Calls raise IndexDefectError where it fails."""

    def __init__(self, *, max_workers: int = 4096, max_held: int = 50_000_000) -> None:
        self.native = cachefleet_native.Index(max_workers=max_workers, max_held=max_held)

    def apply(self, worker: WorkerId, operation: Operation) -> None:
        """Apply one operation."""
        with _errors():
            match operation:
                case Stored(parent, keys, tier):
                    self.native.store(worker, parent, keys, tier)
                case Removed(keys, tier):
                    self.native.remove(worker, keys, tier)
                case Cleared():
                    self.native.clear(worker)

    def ingest(self, worker: WorkerId, delta: bytes) -> None:
        """Apply a Delta frame, decoded in native code."""
        with _errors():
            self.native.ingest(worker, delta)

    def replace(self, worker: WorkerId, parts: Sequence[bytes]) -> None:
        """Apply the parts of a snapshot, decoded in native code."""
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
        """Matched keys of each candidate, in one native call."""
        with _errors():
            return self.native.match(keys, candidates, tier=tier, limit=limit, rules=native_rules(rules), usable=usable)

    def loadable(
        self, keys: Keys, candidates: Sequence[WorkerId], matched: Sequence[int], rules: Sequence[HitRule] = ()
    ) -> list[int]:
        """Keys after the matched ones of each candidate below the device."""
        with _errors():
            return self.native.loadable(keys, candidates, matched, native_rules(rules))

    def forget(self, worker: WorkerId) -> None:
        """Remove a worker."""
        self.native.forget(worker)

    def digest(self, worker: WorkerId) -> int:
        """Digest of a worker's blocks."""
        return self.native.digest(worker)

    def held(self, worker: WorkerId) -> int:
        """How many (key, tier) a worker holds."""
        return self.native.held(worker)

    def held_below(self, worker: WorkerId) -> int:
        """How many of these are below the device."""
        return self.native.held_below(worker)

    def shares(self) -> Mapping[WorkerId, float]:
        """Blocks that the fleet would lose with each worker, estimated."""
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
    """Raise native errors as the exceptions of ``protocol``."""
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
