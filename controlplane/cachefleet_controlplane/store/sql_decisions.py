"""Decision records in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from sqlalchemy import Table, delete, insert, select
from sqlalchemy.engine import RowMapping

from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.schema.tables import DecisionRow
from cachefleet_controlplane.store.store_errors import StoreError

_PRUNE_ROWS: Final = 1000
_decisions = cast("Table", DecisionRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_seq = _decisions.c.seq


class SqlDecisions:
    """The ring as rows in the order of their ``seq``."""

    def __init__(self, database: Database, *, max_rows: int) -> None:
        self._database = database
        self._max_rows = max_rows

    def open(self) -> None:
        self._database.open()

    def save(self, records: Sequence[DecisionRecord]) -> None:
        rows = [msgspec.to_builtins(record) for record in records]
        with self._database.transaction(write=True) as connection:
            connection.execute(delete(_decisions).where(_decisions.c.id.in_([row["id"] for row in rows])))
            connection.execute(insert(_decisions), rows)

    def get(self, decision_id: str) -> DecisionRecord | None:
        with self._database.transaction() as connection:
            row = connection.execute(select(_decisions).where(_decisions.c.id == decision_id)).mappings().first()
        return None if row is None else _record(row)

    def recent(self, limit: int, model: str | None = None) -> list[DecisionRecord]:
        query = select(_decisions).order_by(_seq.desc()).limit(limit)
        if model is not None:
            query = query.where(_decisions.c.model == model)
        with self._database.transaction() as connection:
            return [_record(row) for row in connection.execute(query).mappings()]

    def prune(self) -> int:
        newest_out = select(_seq).order_by(_seq.desc()).offset(self._max_rows).limit(1).scalar_subquery()
        batch = select(_seq).where(_seq <= newest_out).order_by(_seq).limit(_PRUNE_ROWS)
        with self._database.transaction(write=True) as connection:
            result = connection.execute(delete(_decisions).where(_seq.in_(batch)))
        return result.rowcount

    def close(self) -> None:
        self._database.close()


def _record(row: RowMapping) -> DecisionRecord:
    fields: dict[str, Any] = dict(row)
    fields.pop("seq")
    try:
        return msgspec.convert(fields, DecisionRecord)
    except msgspec.ValidationError as error:
        raise StoreError("unreadable", f"a decision was stored in a form this program cannot read: {error}") from error
