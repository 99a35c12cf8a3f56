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
from sqlalchemy import Connection, Select, Table, case, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.hour_ages import credible_now
from cachefleet_controlplane.store.schema.tables import KeyUsageRow, UsageRow
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import Totals, UsageRecord
from cachefleet_core.tenancy import TenantId

logger = logging.getLogger(__name__)
T = TypeVar("T")

DAY_SECONDS: Final = 86_400
HOUR_SECONDS: Final = 3600
_OF_KEY: Final = "/"
"""In the name of a key's budget, and in no tenant's."""
_Key = tuple[int, TenantId, str, str]


class UsageRepository(Protocol):
    """Storage of usage sums. Calls block; every failure is a StoreError and has changed nothing."""

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""

    def add(self, records: Sequence[UsageRecord]) -> None:
        """Add to the stored sums."""

    def between(
        self, start: int, end: int, *, tenant: TenantId | None = None, limit: int, step: int = HOUR_SECONDS
    ) -> list[UsageRecord]:
        """Hours that begin at ``start`` or later and before ``end`` (Unix seconds), in order, ``limit`` rows at most.

        With a ``step`` of several hours those of each are summed up, and ``hour`` is its beginning.
        """
        ...

    def spent(self, names: Sequence[str], *, start: int, end: int, day: int) -> dict[tuple[str, bool], Totals]:
        """What tenants, and keys by their ``budget_name``, used in hours from ``start`` on and before ``end``, by name
        and by whether from ``day`` on.
        """
        ...

    def prune(self, now: int, *, kept_seconds: int) -> int:
        """Delete hours that began more than ``kept_seconds`` before ``now`` (Unix seconds), if the database bears out
        that it is so late; the number of rows deleted.
        """
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
            self._waiting[key] = UsageRecord(hour=used.hour, tenant=used.tenant, model=used.model, key=used.key)
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

    async def spent(self, names: Sequence[str], *, start: int, end: int, day: int) -> dict[tuple[str, bool], Totals]:
        """What was used by now, of other replicas what they have written; as of ``SqlUsage.spent``. StoreError."""
        ask = partial(self._repository.spent, names, start=start, end=end, day=day)
        try:
            async with asyncio.timeout(self._bounds.answer_seconds):
                await self.flush()
                async with self._writing:  # nothing is on its way to the store while it is read
                    found = await self._in_thread(ask)
        except TimeoutError as error:
            raise StoreError("unavailable", "the store did not answer in time") from error
        self._metrics.registry.settle()  # what ended meanwhile
        asked = frozenset(names)
        for used in self._waiting.values():
            if start <= used.hour < end:
                for name in asked.intersection((used.tenant, used.key)):
                    found.setdefault((name, used.hour >= day), Totals()).add(used.totals)
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
            self._repository.prune(hour * HOUR_SECONDS, kept_seconds=self._bounds.days * DAY_SECONDS)
            self._pruned_hour = hour
        if records:
            self._repository.add(records)

    def _put_back(self, records: Iterable[UsageRecord]) -> None:
        for record in records:
            self.record(record)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _key(record: UsageRecord) -> _Key:
    return record.hour, record.tenant, record.model, record.key


def _add(to: UsageRecord, used: UsageRecord) -> None:
    """Add to a sum of our own, which nobody else has yet."""
    for name in _SUMS:
        setattr(to, name, getattr(to, name) + getattr(used, name))


_usage = cast("Table", UsageRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_key_usage = cast("Table", KeyUsageRow.__table__)  # type: ignore[attr-defined]
_KEY: Final = ("hour", "tenant", "model")
_KEY_SUMS: Final = ("tokens", "charged", "requests", "cached_tokens", "output_tokens")
_USED: Final = (
    _usage.c.requests,
    _usage.c.prompt_tokens - _usage.c.cached_tokens,
    _usage.c.cached_tokens,
    _usage.c.completion_tokens,
    _usage.c.charged,
)
"""As Totals have it."""
_USED_BY_KEY: Final = (
    _key_usage.c.requests,
    _key_usage.c.tokens - _key_usage.c.output_tokens,
    _key_usage.c.cached_tokens,
    _key_usage.c.output_tokens,
    _key_usage.c.charged,
)
_SUMS: Final = tuple(field.name for field in fields(UsageRecord) if field.name not in {*_KEY, "key"})


class SqlUsage:
    """Usage sums in SQL. Calls block; every failure is a StoreError and has changed nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""
        self._database.open()

    def add(self, records: Sequence[UsageRecord]) -> None:
        """Add to the stored sums."""
        with self._database.transaction(write=True) as connection:
            connection.execute(_addition(connection, _usage, _KEY, _SUMS), _rows(records))
            if keys := _key_rows(records):
                connection.execute(_addition(connection, _key_usage, ("hour", "key"), _KEY_SUMS), keys)

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

    def spent(self, names: Sequence[str], *, start: int, end: int, day: int) -> dict[tuple[str, bool], Totals]:
        """What tenants, and keys by their ``budget_name``, used in hours from ``start`` on and before ``end``, by name
        and by whether from ``day`` on.
        """
        keys = [name for name in names if _OF_KEY in name]
        queries = [_spent(_usage, _usage.c.tenant, _USED, names, start=start, end=end, day=day)]
        if keys:
            queries.append(_spent(_key_usage, _key_usage.c.key, _USED_BY_KEY, keys, start=start, end=end, day=day))
        with self._database.transaction() as connection:
            rows = [row for query in queries for row in connection.execute(query)]
        return {(row[0], bool(row[1])): Totals(*map(int, row[2:])) for row in rows}

    def prune(self, now: int, *, kept_seconds: int) -> int:
        """Delete hours that began more than ``kept_seconds`` before ``now`` (Unix seconds), if the database bears out
        that it is so late; the number of rows deleted.
        """
        with self._database.transaction(write=True) as connection:
            before = int(credible_now(connection, _usage.c.hour, now)) - kept_seconds
            connection.execute(delete(_key_usage).where(_key_usage.c.hour < before))
            return connection.execute(delete(_usage).where(_usage.c.hour < before)).rowcount


def _record(row: dict[str, Any]) -> UsageRecord:
    """A row of sums, which PostgreSQL gives as decimals."""
    return msgspec.convert(row | {name: int(row[name]) for name in _SUMS}, UsageRecord)


def _rows(records: Sequence[UsageRecord]) -> list[dict[str, Any]]:
    """One row for each hour, tenant and model, in the one order in which replicas lock them."""
    sums: dict[tuple[Any, ...], UsageRecord] = {}
    for record in records:
        of = (record.hour, record.tenant, record.model)
        total = sums.setdefault(of, UsageRecord(hour=record.hour, tenant=record.tenant, model=record.model))
        _add(total, record)
    return [{name: getattr(sums[of], name) for name in (*_KEY, *_SUMS)} for of in sorted(sums)]


def _key_rows(records: Sequence[UsageRecord]) -> list[dict[str, Any]]:
    sums: dict[tuple[int, str], Totals] = {}
    for record in records:
        if record.key:
            sums.setdefault((record.hour, record.key), Totals()).add(record.totals)
    return [{"hour": hour, "key": key, **_key_sums(total)} for (hour, key), total in sorted(sums.items())]


def _key_sums(total: Totals) -> dict[str, int]:
    apart = {"requests": total.requests, "cached_tokens": total.cached_tokens, "output_tokens": total.output_tokens}
    return {"tokens": total.tokens, "charged": total.spend, **apart}


def _spent(
    table: Table, name: Any, used: Sequence[Any], names: Sequence[str], *, start: int, end: int, day: int
) -> Select[Any]:
    later = case((table.c.hour >= day, 1), else_=0)
    query = select(name, later, *map(func.sum, used))
    return query.where(table.c.hour >= start, table.c.hour < end, name.in_(names)).group_by(name, later)


def _addition(connection: Connection, table: Table, key: Sequence[str], summed: Sequence[str]) -> Any:
    """INSERT that adds to an existing row, since replicas share rows; SQLite and PostgreSQL have the same syntax."""
    made = postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
    sums = {name: table.c[name] + made.excluded[name] for name in summed}
    return made.on_conflict_do_update(index_elements=key, set_=sums)
