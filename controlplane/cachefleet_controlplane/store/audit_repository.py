"""Storage of the audit log in SQL: rows are added and, once they are old, deleted; never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from sqlalchemy import ColumnElement, Delete, Table, delete, insert, not_, or_, select

from cachefleet_controlplane.store.audit_records import ALL, FORBIDDEN, READING_VERBS, AuditFilter, AuditRecord
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.audit_table import AuditRow

_audit = cast("Table", AuditRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_columns, _seq = _audit.c, _audit.c.seq
_CONDITIONS: Final[Mapping[str, Callable[[Any], ColumnElement[bool]]]] = {
    "username": lambda value: _columns.username == value,
    "resource": lambda value: _columns.resource == value,
    "since": lambda value: _columns.at >= value,
    "until": lambda value: _columns.at < value,
}
_HARMLESS: Final = or_(_columns.status == FORBIDDEN, _columns.verb.in_(READING_VERBS))
_SHARE: Final = 10
"""Harmless records may be one in so many: they push nothing else out."""


class SqlAudit:
    """The audit log in SQL. Calls block; every failure is a StoreError and has changed nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""
        self._database.open()

    def add(self, records: Sequence[AuditRecord]) -> None:
        """Add records; those whose ids are stored already are left out."""
        rows = [msgspec.to_builtins(record) for record in records]
        with self._database.transaction(write=True) as connection:
            query = select(_columns.id).where(_columns.id.in_([row["id"] for row in rows]))
            known = set(connection.execute(query).scalars())
            if fresh := [row for row in rows if row["id"] not in known]:
                connection.execute(insert(_audit), fresh)

    def recent(self, limit: int, wanted: AuditFilter = ALL, *, before: str | None = None) -> list[AuditRecord]:
        """At most ``limit`` records, the last added first; only those added before the record ``before``."""
        set_here = {name: value for name in _CONDITIONS if (value := getattr(wanted, name)) is not None}
        query = select(_audit).where(*(_CONDITIONS[name](value) for name, value in set_here.items()))
        if before is not None:
            query = query.where(_seq < select(_seq).where(_columns.id == before).scalar_subquery())
        with self._database.transaction() as connection:
            rows = connection.execute(query.order_by(_seq.desc()).limit(limit)).mappings()
            return [msgspec.convert({k: v for k, v in row.items() if k != "seq"}, AuditRecord) for row in rows]

    def prune(self, *, before: float, keep: int) -> int:
        """Delete records made before then (Unix seconds), and the oldest beyond ``keep``; how many."""
        harmless = keep // _SHARE
        with self._database.transaction(write=True) as connection:
            rest = ((_HARMLESS, harmless), (not_(_HARMLESS), keep - harmless))
            queries = [delete(_audit).where(_columns.at < before), *(_beyond(*one) for one in rest)]
            return sum(connection.execute(query).rowcount for query in queries)


def _beyond(kind: ColumnElement[bool], keep: int) -> Delete:
    """Delete the oldest of one kind beyond ``keep``."""
    last_out = select(_seq).where(kind).order_by(_seq.desc()).offset(keep).limit(1).scalar_subquery()
    return delete(_audit).where(kind, _seq <= last_out)
