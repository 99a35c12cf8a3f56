"""Between the scheduler and vLLM's event publisher: counts what is published, keeps the ledger, holds removals back.

vLLM announces the removal of every physical copy of a block, though others may stay; the last one's is what a reader
wants. *Heartbeats* are batches without events that carry a *mark* behind their three fields, where readers that know
nothing of it do not look: the engine's boot id, and how many blocks with which digest are on the device right then. So
a reader sees a lost tail, another process behind the same numbers, and a set that is not the engine's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from cachefleet_worker.plugin.faults import Faults
from cachefleet_worker.plugin.snapshot.resident_ledger import Hash, ResidentLedger, TierCopy, Total

SNAPSHOT: Final = "snapshot"
HEARTBEAT: Final = "heartbeat"
_STOP_SECONDS: Final = 1.0


class Mark(Struct, frozen=True):
    """What a heartbeat says of the engine; ``totals`` is None where the ledger is not kept."""

    boot: str
    totals: list[Total] | None


class Heartbeat(Struct, array_like=True):
    """An event batch with nothing in it but its mark. The publisher fills in the rank, as with any batch."""

    ts: float
    events: list[Any]
    data_parallel_rank: int | None
    mark: Mark


@dataclass(frozen=True, slots=True)
class PointInTime:
    """Everything resident at a sequence (-1: nothing was published yet)."""

    sequence: int
    blocks: int
    totals: list[Total]
    copies: list[TierCopy]


class Copies:
    """Which removals are of a block that has another physical copy in the pool.

    The pool speaks of blocks by their whole hash; events may cut it to 64 bits. So the whole hashes are noted where the
    pool makes its removal events. What is not noted counts as gone.
    """

    def __init__(self, pool: Any, outer_hash: Callable[[Any], tuple[Hash, int]]) -> None:
        self._pool = pool
        self._outer_hash = outer_hash
        self._medium = getattr(pool, "medium", "GPU")
        self._removed: list[Any] = []
        pool._emit_block_removed_events = self._note  # noqa: SLF001 - the one place that every removal passes

    def _note(self, block_hashes: list[Any]) -> None:
        self._removed += block_hashes
        type(self._pool)._emit_block_removed_events(self._pool, block_hashes)  # noqa: SLF001 - as it is by now

    def stop(self) -> None:
        """Note nothing any more."""
        self._pool.__dict__.pop("_emit_block_removed_events", None)
        self._removed = []

    def without_remaining(self, events: list[Any]) -> list[Any]:
        """The events less the removals of blocks that are still there; called once for all since the last call."""
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

    ``publish`` is called on the engine's thread; heartbeats come from a thread of their own. A fault of ours leaves the
    stream as stock vLLM's.
    """

    def __init__(
        self, inner: Any, ledger: ResidentLedger, faults: Faults, *, boot: str, copies: Copies | None = None
    ) -> None:
        self._inner = inner
        self._ledger = ledger
        self._faults = faults
        self._boot = boot
        self._copies = copies
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.sequence = -1
        """The number of the last batch on the wire."""
        self.held_back = 0
        """Removals not published because another copy stayed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def publish(self, events: Any) -> None:
        with self._lock:
            if self._faults.on(SNAPSHOT):
                with self._faults.guard(SNAPSHOT):
                    self._hold_back(events)
                if not events.events:
                    return
            elif self._copies is not None:  # nobody takes what it notes
                self._copies.stop()
                self._copies = None
            self._inner.publish(events)
            self.sequence += 1
            if self._faults.on(SNAPSHOT):
                with self._faults.guard(SNAPSHOT):
                    self._ledger.apply(events.events)

    def shutdown(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
        self._inner.shutdown()

    def point(self) -> PointInTime:
        """What is resident now, with the sequence it is so at."""
        with self._lock:
            return PointInTime(self.sequence, len(self._ledger), self._ledger.totals(), self._ledger.copy())

    def start_heartbeats(self, seconds: float) -> None:
        self._thread = threading.Thread(target=self._beat, args=(seconds,), name="cachefleet-heartbeat", daemon=True)
        self._thread.start()

    def heartbeat(self) -> None:
        """Publish the mark of this moment."""
        with self._lock:
            totals = self._ledger.totals() if self._faults.on(SNAPSHOT) else None
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
