"""Schemas without Alembic: what the migrations did to the first empty database is done to all others."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Connection, event, inspect, text

from cachefleet_controlplane.store.migrations import KEY, migrate

_statements: dict[str, list[tuple[str, Any]]] = {}
"""By dialect: each with its parameters."""


def quick_migrate(connection: Connection) -> None:
    """In the place of ``migrate``, which it leaves every database to that is not empty."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": KEY})
    known = _statements.get(connection.dialect.name)
    if inspect(connection).get_table_names():
        migrate(connection)
    elif known is None:
        _statements[connection.dialect.name] = _migrated(connection)
    else:
        for statement, parameters in known:
            connection.exec_driver_sql(statement, parameters)
        connection.execute(text("UPDATE tenancy SET store = :name"), {"name": uuid.uuid4().hex})  # no two are one


def _migrated(connection: Connection) -> list[tuple[str, Any]]:
    done: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.lstrip().startswith(("SELECT", "PRAGMA")):
            done.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    try:
        migrate(connection)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    return done
