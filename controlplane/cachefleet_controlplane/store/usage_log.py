"""Usage of tenants: summed in memory and written to SQL at intervals, one row per hour, tenant and model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec
from sqlalchemy import Connection, Table, case, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.tables import UsageRow
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import Totals, UsageRecord
from cachefleet_core.tenancy import TenantId

logger = logging.getLogger(__name__)
T = TypeVar("T")

DAY_SECONDS: Final = 86_400
HOUR_SECONDS: Final = 3600
_Key = tuple[int, TenantId, str]


class UsageRepository(Protocol):
    """Storage of usage sums. Calls block; every failure is a StoreError and has changed nothing."""

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""

    def add(self, records: Sequence[UsageRecord]) -> None:
        """Add to the stored sums; no two records may be of one hour, tenant and model."""

    def between(
        self, start: int, end: int, *, tenant: TenantId | None = None, limit: int, step: int = HOUR_SECONDS
    ) -> list[UsageRecord]:
        """Hours that begin at ``start`` or later and before ``end`` (Unix seconds), in order, ``limit`` rows at most.

        With a ``step`` of several hours those of each are summed up, and ``hour`` is its beginning.
        """
        ...

    def spent(
        self, tenants: Sequence[TenantId], *, start: int, end: int, day: int
    ) -> dict[tuple[TenantId, bool], Totals]:
        """What tenants used in hours from ``start`` on and before ``end``, by tenant and by whether from ``day`` on."""
        ...

    def prune(self, before: int) -> int:
        """Delete hours that began before ``before`` (Unix seconds); the number of rows deleted."""
        ...


@dataclass(frozen=True, slots=True)
class UsageBounds:
    """``queue``: sums that may wait to be written, one per hour, tenant and model; ``days``: how long they are kept.

    No reader waits longer than ``answer_seconds`` for the store, nor does the end of the process.
    """

    queue: int = 10_000
    flush_seconds: float = 5.0
    days: int = 400
    answer_seconds: float = 10.0


class UsageLog:
    """Sums usage and writes it; run ``run()`` as a task.

    Where the store fails, sums wait and grow; a new sum beyond the queue's bound is dropped and counted.
    """

    def __init__(
        self,
        repository: UsageRepository,
        *,
        metrics: Metrics,
        wall_clock: Callable[[], float],
        bounds: UsageBounds | None = None,
    ) -> None:
        self._repository = repository
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._bounds = bounds or UsageBounds()
        self._waiting: dict[_Key, UsageRecord] = {}
        self._opened = False
        self._pruned_hour = 0
        self._writing = asyncio.Lock()
        self._flushing: set[asyncio.Task[StoreError | None]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-usage")
        self.problem = ""

    def record(self, used: UsageRecord) -> None:
        """Add usage. Never waits, never fails."""
        key = _key(used)
        before = self._waiting.get(key)
        if before is None and len(self._waiting) >= self._bounds.queue:
            self._metrics.usage_dropped(used.requests)
            return
        if before is None:
            self._waiting[key] = UsageRecord(hour=used.hour, tenant=used.tenant, model=used.model)
        _add(self._waiting[key], used)

    async def between(
        self, start: int, end: int, *, tenant: TenantId | None = None, limit: int, step: int = HOUR_SECONDS
    ) -> list[UsageRecord]:
        """Usage by now, of other replicas what they have written; arguments as in ``SqlUsage.between``. StoreError."""
        ask = partial(self._repository.between, start, end, tenant=tenant, limit=limit, step=step)
        try:
            async with asyncio.timeout(self._bounds.answer_seconds):
                await self.flush()
                return await self._in_thread(ask)
        except TimeoutError as error:
            raise StoreError("unavailable", "the store did not answer in time") from error

    async def spent(
        self, tenants: Sequence[TenantId], *, start: int, end: int, day: int
    ) -> dict[tuple[TenantId, bool], Totals]:
        """What tenants used by now, of other replicas what they have written; as of ``SqlUsage.spent``. StoreError."""
        ask = partial(self._repository.spent, tenants, start=start, end=end, day=day)
        try:
            async with asyncio.timeout(self._bounds.answer_seconds):
                await self.flush()
                async with self._writing:  # nothing is on its way to the store while it is read
                    found = await self._in_thread(ask)
        except TimeoutError as error:
            raise StoreError("unavailable", "the store did not answer in time") from error
        asked = frozenset(tenants)
        for used in self._waiting.values():
            if used.tenant in asked and start <= used.hour < end:
                found.setdefault((used.tenant, used.hour >= day), Totals()).add(used)
        return found

    async def flush(self) -> None:
        """Write what waits. After a StoreError it still waits. Cancelling the caller does not cancel the write."""
        task = asyncio.create_task(self._flush())
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)
        if (error := await asyncio.shield(task)) is not None:
            raise error

    async def run(self) -> None:
        """Write every ``flush_seconds`` until cancelled, and then once more."""
        try:
            while True:
                await asyncio.sleep(self._bounds.flush_seconds)
                await self._try()
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._bounds.answer_seconds):
                    await self._try()
            self._thread.shutdown(wait=False)
            raise

    async def _try(self) -> None:
        try:
            await self.flush()
        except StoreError as error:
            if self.problem != str(error):
                logger.warning("usage cannot be written and waits: %s", error, extra={"kind": error.kind})
            self.problem = str(error)
            self._metrics.store_error(error.kind)
        else:
            self.problem = ""

    async def _flush(self) -> StoreError | None:
        async with self._writing:
            self._metrics.registry.settle()
            batch, self._waiting = self._waiting, {}
            try:
                await self._in_thread(lambda: self._write(list(batch.values())))
            except StoreError as error:
                self._opened = False
                self._put_back(batch.values())
                return error
            except Exception:  # the root of a task; a batch that cannot be written would block the next ones
                logger.exception("usage could not be written and is dropped", extra={"records": len(batch)})
                self._metrics.task_error("usage")
                self._metrics.usage_dropped(sum(record.requests for record in batch.values()))
        return None

    def _write(self, records: list[UsageRecord]) -> None:
        if not self._opened:
            self._repository.open()
            self._opened = True
        # Before adding: if it failed afterwards, sums already written would be written again.
        hour = int(self._wall_clock()) // HOUR_SECONDS
        if hour != self._pruned_hour:
            self._repository.prune((hour * HOUR_SECONDS) - self._bounds.days * DAY_SECONDS)
            self._pruned_hour = hour
        if records:
            self._repository.add(records)

    def _put_back(self, records: Iterable[UsageRecord]) -> None:
        for record in records:
            self.record(record)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _key(record: UsageRecord) -> _Key:
    return record.hour, record.tenant, record.model


def _add(to: UsageRecord, used: UsageRecord) -> None:
    """Add to a sum of our own, which nobody else has yet."""
    for name in _SUMS:
        setattr(to, name, getattr(to, name) + getattr(used, name))


_usage = cast("Table", UsageRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_KEY: Final = ("hour", "tenant", "model")
_SUMS: Final = tuple(field.name for field in fields(UsageRecord) if field.name not in _KEY)


class SqlUsage:
    """Usage sums in SQL. Calls block; every failure is a StoreError and has changed nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""
        self._database.open()

    def add(self, records: Sequence[UsageRecord]) -> None:
        """Add to the stored sums; no two records may be of one hour, tenant and model."""
        with self._database.transaction(write=True) as connection:
            rows = [msgspec.to_builtins(record) for record in records]
            rows.sort(key=lambda row: [row[name] for name in _KEY])  # replicas lock rows in one order
            connection.execute(_addition(connection), rows)

    def between(
        self, start: int, end: int, *, tenant: TenantId | None = None, limit: int, step: int = HOUR_SECONDS
    ) -> list[UsageRecord]:
        """Hours that begin at ``start`` or later and before ``end`` (Unix seconds), in order, ``limit`` rows at most.

        With a ``step`` of several hours those of each are summed up, and ``hour`` is its beginning.
        """
        by = [(_usage.c.hour - _usage.c.hour % step).label("hour"), _usage.c.tenant, _usage.c.model]
        query = select(*by, *(func.sum(_usage.c[name]).label(name) for name in _SUMS))
        query = query.where(_usage.c.hour >= start, _usage.c.hour < end).group_by(*by).order_by(*by).limit(limit)
        if tenant is not None:
            query = query.where(_usage.c.tenant == tenant)
        with self._database.transaction() as connection:
            return [_record(dict(row)) for row in connection.execute(query).mappings()]

    def spent(
        self, tenants: Sequence[TenantId], *, start: int, end: int, day: int
    ) -> dict[tuple[TenantId, bool], Totals]:
        """What tenants used in hours from ``start`` on and before ``end``, by tenant and by whether from ``day`` on."""
        later = case((_usage.c.hour >= day, 1), else_=0)
        tokens = _usage.c.prompt_tokens - _usage.c.cached_tokens + _usage.c.completion_tokens
        query = select(_usage.c.tenant, later, func.sum(tokens), func.sum(_usage.c.charged))
        query = query.where(_usage.c.hour >= start, _usage.c.hour < end, _usage.c.tenant.in_(tenants))
        with self._database.transaction() as connection:
            rows = connection.execute(query.group_by(_usage.c.tenant, later)).all()
        return {(row[0], bool(row[1])): Totals(int(row[2]), int(row[3])) for row in rows}

    def prune(self, before: int) -> int:
        """Delete hours that began before ``before`` (Unix seconds); the number of rows deleted."""
        with self._database.transaction(write=True) as connection:
            return connection.execute(delete(_usage).where(_usage.c.hour < before)).rowcount


def _record(row: dict[str, Any]) -> UsageRecord:
    """A row of sums, which PostgreSQL gives as decimals."""
    return msgspec.convert(row | {name: int(row[name]) for name in _SUMS}, UsageRecord)


def _addition(connection: Connection) -> Any:
    """INSERT that adds to an existing row, since replicas share rows; SQLite and PostgreSQL have the same syntax."""
    made = postgresql.insert(_usage) if connection.dialect.name == "postgresql" else sqlite.insert(_usage)
    sums = {name: _usage.c[name] + made.excluded[name] for name in _SUMS}
    return made.on_conflict_do_update(index_elements=_KEY, set_=sums)
