"""Log of decisions: recording never waits, a bounded queue is written in batches, and reads see queue and database.

Two threads of this log alone use the database, one for writes and one for reads. Synchronous SQLAlchemy in a thread was
chosen over aiosqlite: Alembic needs a synchronous engine anyway, PostgreSQL needs no second driver, and aiosqlite is a
thread as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.decision_feed import DecisionFeed
from cachefleet_controlplane.store.decision_filter import EVERY, DecisionFilter
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.decision_repository import DecisionRepository
from cachefleet_controlplane.store.newest_first import Named, newest_first
from cachefleet_controlplane.store.store_errors import StoreError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_NOT_OPENED = "not opened yet"


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Bounds of the queue and its batches; times in seconds."""

    queue: int = 4096
    batch: int = 256
    flush_seconds: float = 0.25
    """What is waited for a batch to fill; a full one is written at once."""
    prune_every: int = 500
    """Records written between two prunings, and so how many the ring may hold too many."""
    retry_seconds: float = 5.0
    read_seconds: float = 5.0


class LaterRecord(Named, Protocol):
    """What a record is made of when it is looked at, by whichever thread does; it is the same each time."""

    def made(self) -> DecisionRecord:
        """The record."""
        ...

    def stored(self) -> DecisionRecord:
        """The record to be written and not read: its candidates may be JSON."""
        ...


class DecisionLog:
    """Decision records of this process and, as long as the repository works, of earlier ones.

    Run ``run()`` as a task; without it records wait in memory. A failing repository is opened and tried again every
    ``retry_seconds``; meanwhile ``problem`` says why, and records beyond the queue's bound are dropped, oldest first.
    """

    def __init__(self, repository: DecisionRepository, *, metrics: Metrics, bounds: LogBounds | None = None) -> None:
        self._repository = repository
        self._metrics = metrics
        self._bounds = bounds or LogBounds()
        self._waiting: dict[str, LaterRecord] = {}
        self._arrived = asyncio.Event()
        self._opened = False
        self._unpruned = self._bounds.prune_every  # a bound that was lowered takes effect with the first write
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self.problem = _NOT_OPENED
        self.feed = DecisionFeed()

    @property
    def tried(self) -> bool:
        """Whether the repository was opened, or failed to, at least once."""
        return self.problem != _NOT_OPENED

    def record(self, record: LaterRecord) -> None:
        """Queue a record, which the thread that writes it makes, unless somebody looks at it before.

        It replaces one with the same id. Never waits, never fails.
        """
        if len(self.feed):
            self.feed.publish(record.made())
        self._waiting.pop(record.id, None)
        self._waiting[record.id] = record
        if len(self._waiting) > self._bounds.queue:
            del self._waiting[next(iter(self._waiting))]
            self._metrics.store_dropped()
        self._arrived.set()

    async def get(self, decision_id: str) -> DecisionRecord | None:
        """One record or None. StoreError where it is not queued and the repository does not answer."""
        if waiting := self._waiting.get(decision_id):
            return waiting.made()
        return await self._read(lambda: self._repository.get(decision_id))

    async def recent(
        self, limit: int, wanted: DecisionFilter = EVERY, *, before: str | None = None, whole: bool = False
    ) -> list[DecisionRecord]:
        """The latest records, last first, those before the record ``before`` where given.

        Where the repository fails, only those still queued; StoreError where ``before`` is not among these, or
        ``whole`` asks for all.
        """

        async def read(most: int, cursor: str | None) -> list[LaterRecord]:
            return [*await self._read(lambda: self._repository.recent(most, wanted, before=cursor))]

        def matches(record: LaterRecord) -> bool:
            return wanted.matches(record.made())

        found = await newest_first(self._waiting, matches, read, limit=limit, before=before, whole=whole)
        return [record.made() for record in found]

    async def run(self) -> None:
        """Write queued records until cancelled; then flush once and close the repository."""
        try:
            while True:
                await self._step()
        finally:
            await self._finish()

    async def _step(self) -> None:
        try:
            await self._open()
            await self._arrived.wait()
            if len(self._waiting) < self._bounds.batch:
                await asyncio.sleep(self._bounds.flush_seconds)
            await self._write_batch()
        except StoreError as error:
            self._failed(error)
            await asyncio.sleep(self._bounds.retry_seconds)
        except Exception as error:  # the task goes on: what waits is written once the store works
            logger.exception("the store failed unexpectedly")
            self._metrics.task_error("store")
            self._failed(StoreError("unexpected", f"store: {type(error).__name__}"))
            await asyncio.sleep(self._bounds.retry_seconds)

    async def _open(self) -> None:
        if not self._opened:
            await self._in(self._writer, self._repository.open)
            self._opened = True
            self._works()

    async def _write_batch(self) -> None:
        batch = list(islice(self._waiting.values(), self._bounds.batch))
        try:
            await self._in(self._writer, lambda: self._save(batch))
        except StoreError:
            raise
        except Exception:
            # A record that cannot be written would hold up all that follow it.
            logger.exception("decision records could not be written and are dropped", extra={"records": len(batch)})
            self._metrics.task_error("store")
            self._metrics.store_dropped(len(batch))
        else:
            self._metrics.store_written(len(batch))
            self._works()
        self._forget(batch)

    def _save(self, batch: list[LaterRecord]) -> None:
        self._repository.save([record.stored() for record in batch])
        self._unpruned += len(batch)
        if self._unpruned >= self._bounds.prune_every:
            while self._repository.prune():
                pass
            self._unpruned = 0

    def _forget(self, batch: list[LaterRecord]) -> None:
        for record in batch:
            if self._waiting.get(record.id) is record:  # else it was replaced while this was written
                del self._waiting[record.id]
        if not self._waiting:
            self._arrived.clear()

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self._bounds.retry_seconds):
                while self._opened and self._waiting:
                    await self._write_batch()
                await self._in(self._writer, self._repository.close)
        except (StoreError, TimeoutError) as error:
            logger.warning("decisions left unwritten: %s", error, extra={"records": len(self._waiting)})
        self._writer.shutdown(wait=False)
        self._reader.shutdown(wait=False)

    def _works(self) -> None:
        if self.problem and self.problem != _NOT_OPENED:
            logger.info("the store takes decisions again")
        self.problem = ""
        self._metrics.store_up(up=True)

    def _failed(self, error: StoreError) -> None:
        if self.problem != str(error):
            logger.warning("the store fails, routing goes on: %s", error, extra={"kind": error.kind})
        self.problem = str(error)
        self._opened = False
        self._metrics.store_error(error.kind)
        self._metrics.store_up(up=False)

    async def _read(self, call: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._bounds.read_seconds):
                return await self._in(self._reader, call)
        except TimeoutError as error:
            raise StoreError("unavailable", "the store did not answer in time") from error

    @staticmethod
    async def _in(thread: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, call)
