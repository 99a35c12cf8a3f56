"""What each replica may use of tenants' and keys' limits, in PostgreSQL, by its clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final, cast

import msgspec
from sqlalchemy import Connection, Table, delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.tables import LimitBucketRow, ReplicaRow
from cachefleet_controlplane.tenants.budgets import Period, period_start
from cachefleet_controlplane.tenants.leases import (
    FORGET_SECONDS,
    MINUTE,
    NEVER,
    Holding,
    Lease,
    Report,
    SharedBucket,
    Subject,
)
from cachefleet_core.fleet_status.tenant_limits import PER_MINUTE, Limit

BEAT_SECONDS: Final = 2.0
"""Between a replica's signs of life."""
ALIVE_SECONDS: Final = 10.0
"""Without one for so long it is not counted."""
FULL_SECONDS: Final = 120.0
"""Buckets that nobody touched for so long are not told of: most are full."""

_buckets = cast("Table", LimitBucketRow.__table__)  # type: ignore[attr-defined]
_replicas = cast("Table", ReplicaRow.__table__)  # type: ignore[attr-defined]
_SUBJECT: Final = (_buckets.c.tenant, _buckets.c.limited)


class Exchanged(msgspec.Struct, frozen=True):
    """A replica's leases of the limits that it named, what is free of all that are not full, and how many share."""

    leases: dict[Subject, Lease]
    free: dict[Subject, float]
    replicas: int


class SqlLeases:
    """The leases of all replicas. Calls block; every failure is a StoreError and has changed nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._beat = 0.0

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""
        self._database.open()

    def exchange(self, replica: str, reports: Mapping[Subject, Report]) -> Exchanged:
        """Tell what a replica has used of limits, and take its new leases."""
        with self._database.transaction(write=True) as connection:
            beat = self._sign_of_life(connection, replica)
            number = max(1, connection.execute(_alive(_now(connection))).scalar_one())
            buckets = _locked(connection, reports)
            now = _now(connection)
            leases = {}
            for subject, report in sorted(reports.items()):
                bucket = buckets.setdefault(subject, SharedBucket.begun(report, now, _refill(subject[1])))
                if _period_began(subject[1], now) > bucket.at:
                    bucket.begin_period(now)
                leases[subject] = bucket.exchange(replica, report, replicas=number, now=now)
            _write(connection, buckets)
            free = _free(connection, now)
        self._beat = beat
        return Exchanged(leases, free, number)

    def leave(self, replica: str, reports: Mapping[Subject, Report]) -> None:
        """Tell what a replica has used at its end."""
        self.exchange(replica, {subject: msgspec.structs.replace(one, leaves=True) for subject, one in reports.items()})
        with self._database.transaction(write=True) as connection:
            connection.execute(delete(_replicas).where(_replicas.c.replica == replica))

    def _sign_of_life(self, connection: Connection, replica: str) -> float:
        now = _now(connection)
        if self._beat <= now < self._beat + BEAT_SECONDS:
            return self._beat
        sign = insert(_replicas).values(replica=replica, at=now)
        connection.execute(sign.on_conflict_do_update(index_elements=["replica"], set_={"at": now}))
        connection.execute(delete(_replicas).where(_replicas.c.at < now - FORGET_SECONDS))
        connection.execute(delete(_buckets).where(_buckets.c.at < now - FORGET_SECONDS))
        return now


def _now(connection: Connection) -> float:
    """The server's time: replicas' clocks may differ."""
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


def _alive(now: float) -> Any:
    return select(func.count()).select_from(_replicas).where(_replicas.c.at > now - ALIVE_SECONDS)


def _locked(connection: Connection, subjects: Iterable[Subject]) -> dict[Subject, SharedBucket]:
    """The buckets that there are of these, which nobody else exchanges until the end of the transaction."""
    named = sorted(subjects)
    if not named:
        return {}
    new = [{"tenant": tenant, "limited": limited, "most": 0, "free": 0.0, "at": 0.0} for tenant, limited in named]
    connection.execute(insert(_buckets).values(held="{}").on_conflict_do_nothing(), new)
    found = select(_buckets).where(tuple_(*_SUBJECT).in_(named)).order_by(*_SUBJECT).with_for_update()
    rows = connection.execute(found).mappings()
    return {(row["tenant"], row["limited"]): _bucket(row) for row in rows if row["most"]}


def _bucket(row: Mapping[Any, Any]) -> SharedBucket:
    held = msgspec.json.decode(row["held"], type=dict[str, Holding])
    return SharedBucket(row["most"], row["free"], row["at"], held, _refill(row["limited"]))


def _refill(limited: str) -> float:
    """The seconds in which the bucket of a limit refills."""
    return MINUTE if Limit(limited) in PER_MINUTE else NEVER


def _period_began(limited: str, now: float) -> float:
    """When the present period of a limit by the calendar began; long ago for one of a minute."""
    period = Limit(limited).period
    return -inf if period == "minute" else float(period_start(Period(period), now))


def _write(connection: Connection, buckets: Mapping[Subject, SharedBucket]) -> None:
    rows = [
        {"tenant": tenant, "limited": limited, "most": bucket.limit, "free": bucket.free, "at": bucket.at}
        | {"held": msgspec.json.encode(bucket.held).decode()}
        for (tenant, limited), bucket in sorted(buckets.items())
    ]
    if rows:
        made = insert(_buckets)
        put = {name: made.excluded[name] for name in ("most", "free", "at", "held")}
        connection.execute(made.on_conflict_do_update(index_elements=["tenant", "limited"], set_=put), rows)


def _free(connection: Connection, now: float) -> dict[Subject, float]:
    """What is free of buckets that are not full."""
    found = select(*_SUBJECT, _buckets.c.most, _buckets.c.free, _buckets.c.at).where(_buckets.c.at > now - FULL_SECONDS)
    free = {}
    for tenant, limited, most, left, at in connection.execute(found):
        if at < _period_began(limited, now):
            continue
        by_now = SharedBucket(most, left, at, refill=_refill(limited)).free_at(now)
        if by_now < most:
            free[tenant, limited] = by_now
    return free
