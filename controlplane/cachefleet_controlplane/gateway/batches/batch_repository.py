"""SQL repository of batches: their states, their lines, and the lease of the replica that runs one.

Whoever runs a batch holds it by a name of its own, for as long as it says so. Every write of a runner goes by that
name in its own transaction, so one that was taken for dead changes nothing any more, whatever clocks say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, cast

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Table, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from cachefleet_controlplane.gateway.batches.batch_object import Batch
from cachefleet_controlplane.gateway.batches.batch_status import OVER, BatchEvent, step
from cachefleet_controlplane.gateway.batches.input_file import LinePlace
from cachefleet_controlplane.gateway.files import file_repository
from cachefleet_controlplane.gateway.files.file_repository import beyond, in_order
from cachefleet_controlplane.gateway.files.list_query import ListQuery
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.batch_tables import BatchLineRow, BatchRow, FileRow
from cachefleet_core.tenancy import TenantId

PRUNE_BATCHES: Final = 16
_batches = cast("Table", BatchRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_lines = cast("Table", BatchLineRow.__table__)  # type: ignore[attr-defined]
_files = cast("Table", FileRow.__table__)  # type: ignore[attr-defined]


class LineState(IntEnum):
    """What became of a line."""

    WAITING = 0
    ANSWERED = 1
    FAILED = 2
    """It was answered with an error."""
    LEFT = 3
    """Its batch was over before."""


class WaitingLine(Struct, frozen=True):
    """A line that is to be run."""

    turn: int
    """When: after those of smaller turns."""
    at: LinePlace


class StoredLine(Struct, frozen=True):
    """A line, and what became of it."""

    at: LinePlace
    state: LineState
    result: bytes | None


class BatchLease(Struct, frozen=True):
    """Who runs a batch, and until when it need not say so again; Unix seconds."""

    batch: str
    holder: str
    until: float


class LeaseLostError(Exception):
    """Another runner has the batch, or it is gone."""


class SqlBatches:
    """Blocking calls on the database; every failure is a StoreError and has changed nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        """Open the database; to be called before all else, and again after a StoreError."""
        self._database.open()

    # For clients.

    def create(self, batch: Batch, *, unfinished: int) -> bool:
        """Keep a new batch, and its input file for as long as that; False where its tenant has so many unfinished."""
        with self._database.transaction(write=True) as connection:
            own = (_batches.c.tenant == batch.tenant) & _batches.c.status.not_in(OVER)
            if (connection.execute(select(func.count()).where(own)).scalar() or 0) >= unfinished:
                return False
            connection.execute(insert(_batches), _row(batch) | {"holder": None, "held_until": 0.0})
            short = (_files.c.id == batch.input_file) & (_files.c.expires < batch.deleted)
            connection.execute(update(_files).where(short).values(expires=batch.deleted))
            return True

    def batch(self, tenant: TenantId, batch: str) -> Batch | None:
        """Return a tenant's batch; None where it has none of that id."""
        query = select(_batches).where(_batches.c.tenant == tenant, _batches.c.id == batch)
        with self._database.transaction() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else _record(row)

    def page(self, tenant: TenantId, asked: ListQuery) -> Sequence[Batch] | None:
        """Return a page of a tenant's batches and one more where there are more; None where ``after`` is none."""
        query = select(_batches).where(_batches.c.tenant == tenant)
        with self._database.transaction() as connection:
            if asked.after:
                row = connection.execute(query.where(_batches.c.id == asked.after)).mappings().first()
                if row is None:
                    return None
                query = query.where(beyond(_batches, row, oldest_first=False))
            ordered = query.order_by(*in_order(_batches, oldest_first=False)).limit(asked.limit + 1)
            return [_record(each) for each in connection.execute(ordered).mappings()]

    def cancel(self, tenant: TenantId, batch: str, *, now: float) -> Batch | None:
        """Have a batch end; None where the tenant has none of that id. StatusError where it cannot any more."""
        with self._database.transaction(write=True) as connection:
            own = (_batches.c.tenant == tenant) & (_batches.c.id == batch)
            row = connection.execute(select(_batches).where(own).with_for_update()).mappings().first()
            return None if row is None else _move(connection, _record(row), BatchEvent.CANCEL, now)

    def uses(self, file: str) -> bool:
        """Whether a batch that is not over reads a file."""
        reading = (_batches.c.input_file == file) & _batches.c.status.not_in(OVER)
        with self._database.transaction() as connection:
            return connection.execute(select(_batches.c.id).where(reading).limit(1)).first() is not None

    def counts(self) -> dict[str, int]:
        """Return how many batches that are not over there are by status."""
        query = select(_batches.c.status, func.count()).where(_batches.c.status.not_in(OVER))
        with self._database.transaction() as connection:
            return {row[0]: row[1] for row in connection.execute(query.group_by(_batches.c.status))}

    def prune(self, *, now: float) -> int:
        """Delete some batches that are to be forgotten; return how many. Called until that is 0."""
        with self._database.transaction(write=True) as connection:
            over = select(_batches.c.id).where(_batches.c.deleted <= now).limit(PRUNE_BATCHES)
            named = connection.execute(over).scalars().all()
            return connection.execute(delete(_batches).where(_batches.c.id.in_(named))).rowcount

    # For who runs them.

    def claim(self, holder: str, *, now: float, until: float, passed: Collection[str]) -> Batch | None:
        """Hold the oldest batch that nobody holds, of no tenant in ``passed``; None where there is none."""
        free = _batches.c.status.not_in(OVER) & (_batches.c.holder.is_(None) | (_batches.c.held_until <= now))
        oldest = select(_batches.c.id).where(free, _batches.c.tenant.not_in(passed)).order_by(_batches.c.created)
        with self._database.transaction() as connection:
            found = connection.execute(oldest.limit(1)).scalar()
        if found is None:
            return None  # as nearly always: nothing is locked for that
        with self._database.transaction(write=True) as connection:
            held = update(_batches).where(_batches.c.id == found, free).values(holder=holder, held_until=until)
            row = connection.execute(held.returning(*_batches.c)).mappings().first()
            return None if row is None else _record(row)

    def renew(self, lease: BatchLease) -> Batch:
        """Hold a batch for longer, and return it as it is now. LeaseLostError."""
        with self._database.transaction(write=True) as connection:
            return _held(connection, lease)

    def release(self, holder: str) -> None:
        """Hold no batch any more by a name."""
        with self._database.transaction(write=True) as connection:
            own = _batches.c.holder == holder
            connection.execute(update(_batches).where(own).values(holder=None, held_until=0.0))

    def add_lines(self, lease: BatchLease, lines: Sequence[WaitingLine]) -> None:
        """Add lines of a batch that is checked. LeaseLostError."""
        rows = [
            {"batch": lease.batch, "number": one.at.number, "place": one.turn, "start": one.at.start}
            | {"size": one.at.size, "state": LineState.WAITING.value, "result": None}
            for one in lines
        ]
        with self._database.transaction(write=True) as connection:
            _held(connection, lease)
            connection.execute(insert(_lines), rows)

    def drop_lines(self, lease: BatchLease) -> None:
        """Delete the lines of a batch whose check did not come to its end. LeaseLostError."""
        with self._database.transaction(write=True) as connection:
            _held(connection, lease)
            connection.execute(delete(_lines).where(_lines.c.batch == lease.batch))

    def move(self, lease: BatchLease, event: BatchEvent, now: float, **values: Any) -> Batch:
        """Bring a batch to its next status, with other values. LeaseLostError, StatusError."""
        with self._database.transaction(write=True) as connection:
            return _move(connection, _held(connection, lease), event, now, **values)

    def waiting(self, batch: str, *, after: int, limit: int) -> list[WaitingLine]:
        """Return the next lines that wait, in the order of their turns."""
        wanted = (_lines.c.batch == batch) & (_lines.c.state == LineState.WAITING) & (_lines.c.place > after)
        query = select(_lines).where(wanted).order_by(_lines.c.place).limit(limit)
        with self._database.transaction() as connection:
            return [WaitingLine(row["place"], _at(row)) for row in connection.execute(query).mappings()]

    def answered(self, lease: BatchLease, number: int, result: bytes, *, failed: bool) -> Batch:
        """Keep what a line was answered, unless it was before. LeaseLostError."""
        state = LineState.FAILED if failed else LineState.ANSWERED
        waiting = (_lines.c.batch == lease.batch) & (_lines.c.number == number) & (_lines.c.state == LineState.WAITING)
        with self._database.transaction(write=True) as connection:
            batch = _held(connection, lease)
            kept = update(_lines).where(waiting).values(state=state.value, result=result)
            if connection.execute(kept).rowcount:
                counted = _batches.c.failed if failed else _batches.c.completed
                values = {counted.name: counted + 1}
                connection.execute(update(_batches).where(_batches.c.id == lease.batch).values(values))
            return batch

    def leave_rest(self, lease: BatchLease) -> int:
        """Note of all lines that still wait that they are not run; return how many. LeaseLostError."""
        waiting = (_lines.c.batch == lease.batch) & (_lines.c.state == LineState.WAITING)
        with self._database.transaction(write=True) as connection:
            batch = _held(connection, lease)
            left = connection.execute(update(_lines).where(waiting).values(state=LineState.LEFT.value)).rowcount
            failed = {"failed": _batches.c.failed + left}
            connection.execute(update(_batches).where(_batches.c.id == batch.id).values(failed))
            return left

    def lines(self, batch: str, *, after: int, limit: int) -> list[StoredLine]:
        """Return the next lines of a batch in the order of its file."""
        query = select(_lines).where(_lines.c.batch == batch, _lines.c.number > after)
        with self._database.transaction() as connection:
            rows = connection.execute(query.order_by(_lines.c.number).limit(limit)).mappings().all()
        return [
            StoredLine(_at(row), LineState(row["state"]), None if row["result"] is None else bytes(row["result"]))
            for row in rows
        ]

    def finish(
        self, lease: BatchLease, event: BatchEvent, now: float, *, files: Mapping[str, str | None], deleted: float
    ) -> Batch:
        """End a batch together with its files, by the names of their columns, and forget its lines. LeaseLostError,
        StatusError.
        """
        with self._database.transaction(write=True) as connection:
            batch = _held(connection, lease)
            for file in filter(None, files.values()):
                if not file_repository.finish(connection, file, expires=deleted):
                    raise LeaseLostError(file)
            connection.execute(delete(_lines).where(_lines.c.batch == lease.batch))
            return _move(connection, batch, event, now, **files, deleted=deleted, holder=None)


def _held(connection: Connection, lease: BatchLease) -> Batch:
    """The batch of a lease, locked, which holds for longer. LeaseLostError."""
    own = (_batches.c.id == lease.batch) & (_batches.c.holder == lease.holder)
    longer = update(_batches).where(own).values(held_until=lease.until)
    row = connection.execute(longer.returning(*_batches.c)).mappings().first()
    if row is None:
        raise LeaseLostError(lease.batch)
    return _record(row)


def _move(connection: Connection, batch: Batch, event: BatchEvent, now: float, **values: Any) -> Batch:
    following = step(batch.status, event)
    if following is not batch.status:
        values |= {"status": following.value, "times": batch.times | {following.value: now}}
    if values:
        connection.execute(update(_batches).where(_batches.c.id == batch.id).values(values))
    row = connection.execute(select(_batches).where(_batches.c.id == batch.id)).mappings().one()
    return _record(row)


def _at(row: RowMapping) -> LinePlace:
    return LinePlace(row["number"], row["start"], row["size"])


def _row(batch: Batch) -> dict[str, Any]:
    row = {name: getattr(batch, name) for name in Batch.__struct_fields__}
    return row | {"status": batch.status.value, "errors": msgspec.to_builtins(batch.errors)}


def _record(row: RowMapping) -> Batch:
    return msgspec.convert({name: row[name] for name in Batch.__struct_fields__}, Batch)
