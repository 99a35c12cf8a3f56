"""What tenants used, in SQL: one row for each hour, tenant and model, which grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from sqlalchemy import Connection, Table, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.tables import UsageRow
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_core.tenancy import TenantId

_usage = cast("Table", UsageRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_KEY: Final = ("hour", "tenant", "model")
_SUMS: Final = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


class SqlUsage:
    """Calls block; every failure is a StoreError and has changed nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        self._database.open()

    def add(self, records: Sequence[UsageRecord]) -> None:
        """Add to what is there; no two records may be of one hour, tenant and model."""
        with self._database.transaction(write=True) as connection:
            rows = [msgspec.to_builtins(record) for record in records]
            rows.sort(key=lambda row: [row[name] for name in _KEY])  # replicas lock them in one order
            connection.execute(_addition(connection), rows)

    def between(self, start: int, end: int, *, tenant: TenantId | None = None, limit: int) -> list[UsageRecord]:
        """Hours that begin at ``start`` or later and before ``end`` (Unix seconds), in order; ``limit`` at most."""
        query = select(_usage).where(_usage.c.hour >= start, _usage.c.hour < end).limit(limit)
        query = query.order_by(*(_usage.c[name] for name in _KEY))
        if tenant is not None:
            query = query.where(_usage.c.tenant == tenant)
        with self._database.transaction() as connection:
            return [msgspec.convert(dict(row), UsageRecord) for row in connection.execute(query).mappings()]

    def prune(self, before: int) -> int:
        """Forget hours that began before; how many rows those were."""
        with self._database.transaction(write=True) as connection:
            return connection.execute(delete(_usage).where(_usage.c.hour < before)).rowcount


def _addition(connection: Connection) -> Any:
    """INSERT that adds where there is a row: replicas add to the same ones. SQLite and PostgreSQL spell it alike."""
    made = postgresql.insert(_usage) if connection.dialect.name == "postgresql" else sqlite.insert(_usage)
    sums = {name: _usage.c[name] + made.excluded[name] for name in _SUMS}
    return made.on_conflict_do_update(index_elements=_KEY, set_=sums)
