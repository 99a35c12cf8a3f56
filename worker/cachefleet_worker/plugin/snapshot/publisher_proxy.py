"""Between the scheduler and vLLM's event publisher: numbers batches, keeps the ledger, holds back removals.

vLLM announces the removal of every physical copy of a block, though others may remain; readers need only the last one.
*Heartbeats* are batches without events that carry a *mark* after their three fields, where other readers do not look:
the engine's boot id, and number and digest of the blocks on the device at that point. From it a reader notices a lost
tail, another process behind the same numbers, and a set that differs from the engine's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.snapshot.ancestry import Hash
from cachefleet_worker.plugin.snapshot.resident_ledger import ResidentLedger, TierCopy, Total

SNAPSHOT: Final = "snapshot"
HEARTBEAT: Final = "heartbeat"
_STOP_SECONDS: Final = 1.0


class Mark(Struct, frozen=True):
    """The engine's state in a heartbeat; ``totals`` is None where the ledger is not kept."""

    boot: str
    totals: list[Total] | None


class Heartbeat(Struct, array_like=True):
    """An event batch without events, with a mark. The publisher fills in the rank, as in any batch."""

    ts: float
    events: list[Any]
    data_parallel_rank: int | None
    mark: Mark


@dataclass(frozen=True, slots=True)
class PointInTime:
    """Everything resident at a sequence number (-1: nothing was published yet)."""

    sequence: int
    blocks: int
    totals: list[Total]
    copies: list[TierCopy]


class Copies:
    """Finds removals of blocks that have another physical copy in the pool.

    The pool identifies blocks by their full hash; events may cut it to 64 bits. So the full hashes are recorded where
    the pool makes its removal events. A block not recorded counts as gone.
    """

    def __init__(self, pool: Any, outer_hash: Callable[[Any], tuple[Hash, int]]) -> None:
        self._pool = pool
        self._outer_hash = outer_hash
        self._medium = getattr(pool, "medium", "GPU")
        self._removed: list[Any] = []
        pool._emit_block_removed_events = self._note  # noqa: SLF001 - every removal passes here

    def _note(self, block_hashes: list[Any]) -> None:
        self._removed += block_hashes
        type(self._pool)._emit_block_removed_events(self._pool, block_hashes)  # noqa: SLF001 - as it is by now

    def stop(self) -> None:
        """Restore the pool's method and record nothing more."""
        self._pool.__dict__.pop("_emit_block_removed_events", None)
        self._removed = []

    def without_remaining(self, events: list[Any]) -> list[Any]:
        """``events`` less removals of blocks that remain; covers all removals since the last call."""
        removed, self._removed = self._removed, []
        if not removed:
            return events
        find = self._pool.cached_block_hash_to_block.get_one_block
        there = {self._outer_hash(each) for each in removed if find(each) is not None}
        return [event for event in events if not self._stays(event, there)] if there else events

    def _stays(self, event: Any, there: set[tuple[Hash, int]]) -> bool:
        return (
            type(event).__name__ == "BlockRemoved"
            and event.medium == self._medium
            and event.locality is None
            and all((block_hash, event.group_idx or 0) in there for block_hash in event.block_hashes)
        )


class PublisherProxy:
    """Stands for vLLM's publisher, which does the publishing.

    ``publish`` is called on the engine's thread; heartbeats come from a thread of their own. After a fault of ours the
    stream is as with stock vLLM.
    """

    def __init__(
        self, inner: Any, ledger: ResidentLedger, faults: Faults, *, boot: str, copies: Copies | None = None
    ) -> None:
        self._inner = inner
        self.ledger = ledger
        self._faults = faults
        self._boot = boot
        self._copies = copies
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.sequence = -1
        """Number of the last published batch; -1 before the first."""
        self.held_back = 0
        """Removals not published because another copy remains."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def publish(self, events: Any) -> None:
        """Publish a batch, less removals that are held back, and apply it to the ledger."""
        with self._lock:
            if self._faults.on(SNAPSHOT):
                with self._faults.guard(SNAPSHOT):
                    self._hold_back(events)
                if not events.events:
                    return
            elif self._copies is not None:  # its records would only grow
                self._copies.stop()
                self._copies = None
            self._inner.publish(events)
            self.sequence += 1
            if self._faults.on(SNAPSHOT):
                with self._faults.guard(SNAPSHOT):
                    self.ledger.apply(events.events)

    def shutdown(self) -> None:
        """Stop heartbeats, then vLLM's publisher."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
        self._inner.shutdown()

    def point(self) -> PointInTime:
        """What is resident now, with its sequence number."""
        with self._lock:
            return PointInTime(self.sequence, len(self.ledger), self.ledger.totals(), self.ledger.copy())

    def start_heartbeats(self, seconds: float) -> None:
        """Start the heartbeat thread, with this interval."""
        self._thread = threading.Thread(target=self._beat, args=(seconds,), name="cachefleet-heartbeat", daemon=True)
        self._thread.start()

    def heartbeat(self) -> None:
        """Publish a mark with the present totals."""
        with self._lock:
            totals = self.ledger.totals() if self._faults.on(SNAPSHOT) else None
            self._inner.publish(Heartbeat(time.time(), [], None, Mark(self._boot, totals)))
            self.sequence += 1

    def _beat(self, seconds: float) -> None:
        while not self._stopped.wait(seconds):
            with self._faults.guard(HEARTBEAT):
                self.heartbeat()
            if not self._faults.on(HEARTBEAT):
                return

    def _hold_back(self, batch: Any) -> None:
        if self._copies is not None:
            kept = self._copies.without_remaining(batch.events)
            self.held_back += len(batch.events) - len(kept)
            batch.events = kept
