"""Storage of decision records: the Protocol, and its implementation in SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Protocol, Self, cast

import msgspec
from msgspec.structs import fields
from sqlalchemy import (
    JSON,
    ColumnElement,
    Dialect,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
)
from sqlalchemy.engine import RowMapping

from cachefleet_controlplane.store.database import Database, encoded
from cachefleet_controlplane.store.decision_filter import ANY, ENDED_BY, EVERY, STATUSES, DecisionFilter, RequestOutcome
from cachefleet_controlplane.store.decision_records import CandidateRecord, DecisionRecord
from cachefleet_controlplane.store.schema.tables import DecisionRow
from cachefleet_controlplane.store.store_errors import StoreError

_PRUNE_ROWS: Final = 1000
_decisions = cast("Table", DecisionRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_seq = _decisions.c.seq
# Row by row: one statement with as many parameters would be put together anew for each batch.
_delete = delete(_decisions).where(_decisions.c.id == bindparam("saved"))
_JSON: Final = frozenset(column.key for column in _decisions.columns if isinstance(column.type, JSON))
_CANDIDATE: Final[Mapping[str, Any]] = {field.name: field.default for field in fields(CandidateRecord)}
"""Defaults of a candidate's fields, in their order."""


class DecisionRepository(Protocol):
    """A bounded ring of decision records. Calls block; failures of the database are StoreErrors and change nothing."""

    def open(self) -> None:
        """Connect and migrate what is needed; may be called again after a StoreError."""
        ...

    def save(self, records: Sequence[DecisionRecord]) -> None:
        """Store records; one with the id of an older one replaces it and counts as recent."""
        ...

    def get(self, decision_id: str) -> DecisionRecord | None:
        """The record with this id, None where it is not stored any more."""
        ...

    def recent(self, limit: int, wanted: DecisionFilter = EVERY, *, before: str | None = None) -> list[DecisionRecord]:
        """At most ``limit`` records, the last saved first; only those saved before the record ``before``.

        None where that is not stored any more: neither is anything older.
        """
        ...

    def prune(self) -> int:
        """Delete a batch of the oldest records beyond the ring's size; their number. Called until it is 0."""
        ...

    def close(self) -> None:
        """Close connections; ``open`` may follow."""


class _Insert:
    """A statement for records and their values, made once: SQLAlchemy would look at every value of every row."""

    def __init__(self, dialect: Dialect) -> None:
        style = "qmark" if dialect.positional else "format"
        by_position = type(dialect)(paramstyle=style)  # type: ignore[call-arg]  # each of SQLAlchemy's takes it
        statement = insert(_decisions).inline().values(keyed_candidates=literal_column("'[]'"))
        compiled = statement.compile(dialect=by_position, column_keys=list(DecisionRecord.__struct_fields__))
        self.sql = str(compiled)
        names: Sequence[str] = compiled.positiontup or ()
        self._values = attrgetter(*names)
        self._encoded = [place for place, name in enumerate(names) if name in _JSON]

    @classmethod
    @lru_cache
    def of(cls, dialect: Dialect) -> Self:
        """One for each database."""
        return cls(dialect)

    def row(self, record: DecisionRecord) -> tuple[Any, ...]:
        """The values of a record as the statement's parameters."""
        values = list(self._values(record))
        for place in self._encoded:
            if values[place] is not None:
                values[place] = encoded(values[place])
        return tuple(values)


class SqlDecisions:
    """A DecisionRepository in SQL: rows in the order of their ``seq``."""

    def __init__(self, database: Database, *, max_rows: int) -> None:
        self._database = database
        self._max_rows = max_rows

    def open(self) -> None:
        """Connect, check and migrate the database."""
        self._database.open()

    def save(self, records: Sequence[DecisionRecord]) -> None:
        """Store records in one transaction, those with ids that there are in their place."""
        try:
            self._insert(records)
        except StoreError as error:
            if error.kind != "conflict":
                raise
            self._insert(records, over=True)  # rarely: what was saved before is saved again

    def _insert(self, records: Sequence[DecisionRecord], *, over: bool = False) -> None:
        """Insert records in one transaction, ``over`` those with the same ids."""
        with self._database.transaction(write=True) as connection:
            if over:
                connection.execute(_delete, [{"saved": record.id} for record in records])
            statement = _Insert.of(connection.dialect)
            connection.exec_driver_sql(statement.sql, [statement.row(record) for record in records])

    def get(self, decision_id: str) -> DecisionRecord | None:
        """The record with this id; StoreError where its row cannot be read."""
        with self._database.transaction() as connection:
            row = connection.execute(select(_decisions).where(_decisions.c.id == decision_id)).mappings().first()
        return None if row is None else _record(row)

    def recent(self, limit: int, wanted: DecisionFilter = EVERY, *, before: str | None = None) -> list[DecisionRecord]:
        """At most ``limit`` records, the last saved first; only those saved before the record ``before``."""
        query = select(_decisions).where(*_conditions(wanted)).order_by(_seq.desc()).limit(limit)
        if before is not None:
            query = query.where(_seq < select(_seq).where(_decisions.c.id == before).scalar_subquery())
        with self._database.transaction() as connection:
            return [_record(row) for row in connection.execute(query).mappings()]

    def prune(self) -> int:
        """Delete at most _PRUNE_ROWS of the oldest beyond ``max_rows``; their number."""
        # Counted by an index: rows are large, and to look for the first one beyond would read all of them.
        rows = select(func.count().label("n")).select_from(_decisions).subquery().c.n
        excess = case((rows > self._max_rows, rows - self._max_rows), else_=0)
        most = select(case((excess < _PRUNE_ROWS, excess), else_=_PRUNE_ROWS)).scalar_subquery()
        batch = select(_seq).order_by(_seq).limit(most)
        with self._database.transaction(write=True) as connection:
            result = connection.execute(delete(_decisions).where(_seq.in_(batch)))
        return result.rowcount

    def close(self) -> None:
        """Close the database, which other repositories may share."""
        self._database.close()


def _conditions(wanted: DecisionFilter) -> list[ColumnElement[bool]]:
    """The conditions of a filter as SQL."""
    return [condition(value) for name, condition in _CONDITIONS.items() if (value := getattr(wanted, name)) is not None]


_columns = _decisions.c


def _with_outcome(outcome: RequestOutcome) -> ColumnElement[bool]:
    lowest, highest = STATUSES[outcome]
    condition: ColumnElement[bool] = _columns.status.between(lowest, highest)
    if outcome in ENDED_BY:
        condition = and_(condition, _columns.ended_by.is_not_distinct_from(ENDED_BY[outcome]))
    return or_(condition, _columns.status == highest) if outcome is RequestOutcome.GONE else condition


_CONDITIONS: Final[Mapping[str, Callable[[Any], ColumnElement[bool]]]] = {
    "model": lambda value: _columns.model == value,
    "request_id": lambda value: _columns.request_id == value,
    "tenant": lambda value: _columns.tenant == value,
    "pool": lambda value: _columns.pool == value,
    "worker": lambda value: or_(_columns.worker == value, _columns.pool + "/" + _columns.worker == value),
    "outcome": _with_outcome,
    "shortfall": lambda value: (
        _columns.shortfall.is_not(None) if value == ANY else _columns.shortfall["cause"].as_string() == value
    ),
    "since": lambda value: _columns.at >= value,
    "until": lambda value: _columns.at < value,
}


def _record(row: RowMapping) -> DecisionRecord:
    # By the names that records have: a column keeps the name it was made with.
    values: dict[str, Any] = {column.key: row[column] for column in _decisions.columns if column is not _seq}
    if values["candidates"] is None:
        values["candidates"] = [[*(_CANDIDATE | each).values()] for each in values["keyed_candidates"]]
    try:
        return msgspec.convert(values, DecisionRecord)
    except msgspec.ValidationError as error:
        raise StoreError("unreadable", f"a decision was stored in a form this program cannot read: {error}") from error
