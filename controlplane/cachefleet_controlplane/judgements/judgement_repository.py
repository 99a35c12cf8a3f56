"""Judged minutes and changes of size in SQL. Calls block; every failure is a StoreError.

Minutes are written as unions of bits: replicas may write what they saw of the same hour in any order, and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct
from sqlalchemy import Connection, Table, and_, case, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from cachefleet_controlplane.judgements.judged_minutes import HourPart
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.hour_ages import credible_now, database_seconds
from cachefleet_controlplane.store.schema.judgement_tables import JudgedMinutesRow, SizeChangeRow
from cachefleet_core.fleet_status.capacity_facts import JUDGED

HOUR_SECONDS: Final = 3600
KEPT_HOURS: Final = 31 * 24
"""Of minutes, and of changes of size."""
COMMIT_SECONDS: Final = 120
"""From when a transaction takes its time until others can read it, at most."""
MOST_CHANGES: Final = 64
"""Of one pool that are read: those of several replicas among them."""


class Judged(Struct, frozen=True):
    """Whose minutes they are: of a contract its tenant's in a pool, of advice a pool's (tenant "")."""

    kind: str
    pool: str
    tenant: str


class KeptChange(Struct, frozen=True):
    """A change of size: when, in Unix seconds, and its JSON; None where it was dropped."""

    pool: str
    at: float
    change: Mapping[str, Any] | None


class StoredMinutes(Struct, frozen=True):
    """Minutes that were read, and when, in Unix seconds by the database's clock."""

    at: int
    parts: Sequence[tuple[Judged, HourPart]]


_minutes = cast("Table", JudgedMinutesRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_changes = cast("Table", SizeChangeRow.__table__)  # type: ignore[attr-defined]
_KEY: Final = ("kind", "pool", "tenant", "hour", "reason")


class SqlJudgements:
    """Of all replicas that share the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""
        self._database.open()

    def exchange(
        self,
        written: Sequence[tuple[Judged, HourPart]],
        unread: Sequence[Judged],
        *,
        since: int,
        read_at: int | None = None,
    ) -> StoredMinutes:
        """Write parts; then read what there is of all from the hour ``since`` on, what was written since ``read_at``,
        the time of the last exchange, of any hour, and all there is of ``unread``.
        """
        with self._database.transaction(write=bool(written)) as connection:
            now = database_seconds(connection)
            if rows := [_row(named, part) | {"written": now} for named, part in written]:
                connection.execute(_union(connection), sorted(rows, key=lambda row: [row[name] for name in _KEY]))
            wanted = [and_(*(_minutes.c[name] == getattr(one, name) for name in _KEY[:3])) for one in unread]
            if read_at is not None:
                wanted.append(_minutes.c.written >= read_at - COMMIT_SECONDS)
            query = select(_minutes).where(or_(_minutes.c.hour >= since, *wanted))
            return StoredMinutes(now, [_part(row) for row in connection.execute(query)])

    def changes(self, pool: str) -> list[KeptChange]:
        """A pool's last ones, the latest last."""
        query = select(_changes).where(_changes.c.pool == pool).order_by(_changes.c.at.desc()).limit(MOST_CHANGES)
        with self._database.transaction() as connection:
            return [KeptChange(row.pool, row.at, row.change) for row in connection.execute(query)][::-1]

    def keep(self, changes: Sequence[KeptChange]) -> None:
        """Write changes of size, or delete those that were dropped; one that another replica has judged stays."""
        with self._database.transaction(write=True) as connection:
            for one in changes:
                row = (_changes.c.pool == one.pool) & (_changes.c.at == one.at)
                if _is_judged(connection.execute(select(_changes.c.change).where(row)).scalar()):
                    continue
                connection.execute(delete(_changes).where(row))
                if one.change is not None:
                    connection.execute(_changes.insert().values(pool=one.pool, at=one.at, change=dict(one.change)))

    def prune(self, *, now: float) -> int:
        """Delete what is older than KEPT_HOURS, if the database bears out that it is; the number of rows deleted."""
        with self._database.transaction(write=True) as connection:
            credible = credible_now(connection, _minutes.c.hour, now, hour_seconds=HOUR_SECONDS)
            oldest = int(credible) // HOUR_SECONDS - KEPT_HOURS
            minutes = connection.execute(delete(_minutes).where(_minutes.c.hour < oldest)).rowcount
            return minutes + connection.execute(delete(_changes).where(_changes.c.at < oldest * HOUR_SECONDS)).rowcount


def _is_judged(change: Mapping[str, Any] | None) -> bool:
    return change is not None and change.get("phase") == JUDGED


def _row(named: Judged, part: HourPart) -> dict[str, Any]:
    return {name: getattr(named if name in _KEY[:3] else part, name) for name in (*_KEY, "bits", "evicted")}


def _part(row: Any) -> tuple[Judged, HourPart]:
    return Judged(row.kind, row.pool, row.tenant), HourPart(row.hour, row.reason, row.bits, row.evicted)


def _union(connection: Connection) -> Any:
    """INSERT that joins bits with those of a row that is there, and keeps the most blocks; the same on both kinds."""
    made = postgresql.insert(_minutes) if connection.dialect.name == "postgresql" else sqlite.insert(_minutes)
    here, new = _minutes.c, made.excluded
    most = case((new.evicted > here.evicted, new.evicted), else_=here.evicted)
    joined = {"bits": here.bits.op("|")(new.bits), "evicted": most, "written": new.written}
    return made.on_conflict_do_update(index_elements=_KEY, set_=joined)
