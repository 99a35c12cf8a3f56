"""The BlockIndex in native code (``native/``): the same answers as ``PythonIndex``, sooner and in less memory.

Importing this module needs ``cachefleet_native``; ``engines`` decides whether it is there.
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
from cachefleet_core.blocks import Tier
from cachefleet_core.reports import Cleared, FrameError, Operation, Removed, Stored


class NativeIndex:
    """A BlockIndex; ``docs/index.md`` has its structure."""

    def __init__(self, *, max_workers: int = 4096, max_held: int = 50_000_000) -> None:
        self.native = cachefleet_native.Index(max_workers=max_workers, max_held=max_held)

    def apply(self, worker: WorkerId, operation: Operation) -> None:
        with _errors():
            match operation:
                case Stored(parent, keys, tier):
                    self.native.store(worker, parent, keys, tier)
                case Removed(keys, tier):
                    self.native.remove(worker, keys, tier)
                case Cleared():
                    self.native.clear(worker)

    def ingest(self, worker: WorkerId, delta: bytes) -> None:
        with _errors():
            self.native.ingest(worker, delta)

    def replace(self, worker: WorkerId, parts: Sequence[bytes]) -> None:
        with _errors():
            self.native.replace(worker, list(parts))

    def match(
        self,
        keys: Keys,
        candidates: Sequence[WorkerId],
        *,
        tier: Tier = Tier.DEVICE,
        limit: int | None = None,
    ) -> list[int]:
        with _errors():
            return self.native.match(keys, candidates, tier=tier, limit=limit)

    def forget(self, worker: WorkerId) -> None:
        self.native.forget(worker)

    def digest(self, worker: WorkerId) -> int:
        return self.native.digest(worker)

    def shares(self) -> Mapping[WorkerId, float]:
        return cast("dict[WorkerId, float]", self.native.shares())

    def stats(self) -> IndexStats:
        held, keys, size = self.native.stats()
        return IndexStats(held=cast("dict[WorkerId, int]", held), keys=keys, bytes=size)


@contextmanager
def _errors() -> Iterator[None]:
    """Native errors by the names that the twin gives them."""
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
