"""The audit log in front of its repository: a bounded queue that is written at once, or once the store works again.

One thread of this log alone uses the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.audit_records import ALL, AuditFilter, AuditRecord
from cachefleet_controlplane.store.audit_repository import SqlAudit
from cachefleet_controlplane.store.newest_first import newest_first
from cachefleet_controlplane.store.store_errors import StoreError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class AuditBounds:
    """How many records wait at most, how long and how many are kept; times in seconds unless a name says otherwise."""

    queue: int = 1000
    days: int = 365
    rows: int = 1_000_000
    write_seconds: float = 2.0
    """How long ``record`` waits for the store."""
    retry_seconds: float = 5.0
    read_seconds: float = 5.0
    prune_every: int = 100
    """Records written between two prunings."""


class AuditLog:
    """Records of this process and, as long as the repository works, of all others.

    Run ``run()`` as a task; without it records wait in memory. While the repository fails, ``problem`` says why.
    """

    def __init__(
        self, repository: SqlAudit, *, metrics: Metrics, wall_clock: Callable[[], float], bounds: AuditBounds
    ) -> None:
        self._repository = repository
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._bounds = bounds
        self._waiting: dict[str, AuditRecord] = {}
        self._arrived = asyncio.Event()
        self._written = asyncio.Condition()
        self._opened = False
        self._unpruned = bounds.prune_every
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-audit")
        self.problem = ""

    @property
    def waiting(self) -> int:
        """Records that are not stored yet."""
        return len(self._waiting)

    async def record(self, record: AuditRecord) -> None:
        """Add a record; returns once it is stored, or when that takes too long, while it still waits to be."""
        self._waiting[record.id] = record
        if len(self._waiting) > self._bounds.queue:
            harmless = (name for name, one in self._waiting.items() if one.harmless)
            del self._waiting[next(harmless, next(iter(self._waiting)))]
            self._metrics.audit_dropped()
        self._arrived.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self.problem else self._bounds.write_seconds), self._written:
                await self._written.wait_for(lambda: record.id not in self._waiting or bool(self.problem))

    async def recent(
        self, limit: int, wanted: AuditFilter = ALL, *, before: str | None = None, whole: bool = False
    ) -> list[AuditRecord]:
        """The latest records, last first, those before the record ``before`` where given.

        Where the repository fails, only those that wait; StoreError where ``before`` is not among these, or
        ``whole`` asks for all.
        """

        async def read(most: int, cursor: str | None) -> list[AuditRecord]:
            try:
                async with asyncio.timeout(self._bounds.read_seconds):
                    return await self._in_thread(lambda: self._read(most, wanted, cursor))
            except TimeoutError as error:
                raise StoreError("unavailable", "the store did not answer in time") from error

        return await newest_first(self._waiting, wanted.matches, read, limit=limit, before=before, whole=whole)

    async def run(self) -> None:
        """Write records until cancelled, and then once more."""
        try:
            while True:
                await self._arrived.wait()
                await self._try()
                if self.problem:
                    await asyncio.sleep(self._bounds.retry_seconds)
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._bounds.write_seconds):
                    await self._try()
            self._thread.shutdown(wait=False)
            raise

    async def _try(self) -> None:
        batch = list(self._waiting.values())
        try:
            await self._in_thread(lambda: self._write(batch))
        except StoreError as error:
            if self.problem != str(error):
                logger.warning("the audit log cannot be written and waits: %s", error, extra={"kind": error.kind})
            self.problem = str(error)
            self._metrics.store_error(error.kind)
        else:
            self.problem = ""
            for record in batch:
                self._waiting.pop(record.id, None)
        if not self._waiting:
            self._arrived.clear()
        async with self._written:
            self._written.notify_all()

    def _open(self) -> None:
        if not self._opened:
            self._repository.open()
            self._opened = True

    def _read(self, limit: int, wanted: AuditFilter, before: str | None) -> list[AuditRecord]:
        self._open()
        return self._repository.recent(limit, wanted, before=before)

    def _write(self, records: list[AuditRecord]) -> None:
        try:
            self._open()
            self._repository.add(records)
            self._unpruned += len(records)
            if self._unpruned >= self._bounds.prune_every:
                oldest = self._wall_clock() - self._bounds.days * _DAY_SECONDS
                self._repository.prune(before=oldest, keep=self._bounds.rows)
                self._unpruned = 0
        except StoreError:
            self._opened = False
            raise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
