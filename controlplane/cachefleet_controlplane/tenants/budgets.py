"""What tenants, and keys with limits of their own, have used in the present day and month of UTC, held against these.
Pure; times are Unix seconds.

What a request used counts in the period in which it came, once it has ended; a request itself as soon as it is let in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import ceil
from typing import Final

from msgspec import Struct, structs

from cachefleet_controlplane.store.tenant_records import KeyRecord, TenantRecord, Totals, UsageRecord
from cachefleet_controlplane.tenants.leases import NEVER, Lease, OtherReplicas
from cachefleet_controlplane.tenants.limits import RETRY_SECONDS, Bucket, LeasedBuckets
from cachefleet_controlplane.tenants.rate_limit_headers import TOLD, Room, Rooms
from cachefleet_core.fleet_status.tenant_limits import BUDGET, Limit


class Period(StrEnum):
    """A span of UTC's calendar for which a tenant has limits."""

    DAY = "day"
    MONTH = "month"


_MORE_THAN_A_MONTH: Final = timedelta(days=32)


def period_start(period: Period, now: float) -> int:
    """When the period began in which ``now`` is."""
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((day if period is Period.DAY else day.replace(day=1)).timestamp())


def period_end(period: Period, now: float) -> int:
    """When the next period begins after the one in which ``now`` is."""
    start = datetime.fromtimestamp(period_start(period, now), UTC)
    if period is Period.DAY:
        return int((start + timedelta(days=1)).timestamp())
    return int((start + _MORE_THAN_A_MONTH).replace(day=1).timestamp())


class _Used(Struct):
    """What was used in a period."""

    start: int
    end: int
    totals: Totals

    def of(self, now: float) -> Totals:
        """What was used in the period in which ``now`` is."""
        return self.totals if now < self.end else _NOTHING


_NOTHING: Final = Totals()


class _Bound(Struct, frozen=True):
    """A limit of a tenant or key, what of Totals it limits to ``most``, and what this replica may use of it where
    replicas share it.
    """

    limit: Limit
    period: Period
    unit: str
    most: int
    bucket: Bucket | None = None


class BudgetUse(LeasedBuckets):
    """What a tenant or key is held to, and what it used."""

    __slots__ = ("_ends", "limits", "periods", "under_way", "wall")

    def __init__(self) -> None:
        super().__init__()
        self.limits: tuple[_Bound, ...] = ()
        self.periods: dict[Period, _Used] = {}
        """What was used in the last known day and month."""
        self.under_way = 0
        """Requests that were let in and have not ended."""
        self.wall = 0.0
        """When it was asked about last."""
        self._ends = 0
        """When the first of its periods ends."""

    def hold_to(self, holder: TenantRecord | KeyRecord, now: float, others: OtherReplicas) -> None:
        """Take the limits of a tenant's or key's present record, and see whether a period has begun."""
        self.wall = now
        if self.record is holder and now < self._ends:
            return
        if now >= self._ends:
            self._begin_periods(now)
        self.record, found = holder, []
        for limit in BUDGET:
            most, period = getattr(holder, limit), Period(limit.period)
            if most is not None:
                bound = _Bound(limit, period, limit.unit, most)
                left = most - self.amount(bound, now)
                lease = others.first(holder.name, limit, left)
                found.append(bound if lease is None else structs.replace(bound, bucket=self._bucket(bound, lease)))
            elif limit in self.buckets:
                self.buckets[limit].hold_to(None, now)
        self.limits = tuple(found)

    def _begin_periods(self, now: float) -> None:
        """Have buckets of a period that has ended begin anew."""
        ended = [
            limit for limit in self.buckets if self._ends and period_start(Period(limit.period), now) >= self._ends
        ]
        for limit in ended:
            self.buckets[limit].hold_to(None, now)
        self._ends = period_end(Period.DAY, now)

    def _bucket(self, bound: _Bound, lease: Lease) -> Bucket:
        bucket = self.buckets.setdefault(bound.limit, Bucket(NEVER))
        bucket.hold_to(bound.most, self.wall, lease)
        return bucket

    def amount(self, bound: _Bound, now: float) -> int:
        """What counts against a limit in the period in which ``now`` is."""
        used = self.periods.get(bound.period)
        amount: int = getattr(_NOTHING if used is None else used.of(now), bound.unit)
        return amount + self.under_way if bound.unit == "requests" else amount

    def used(self, limit: Limit) -> int:
        """What counts against a limit in the period in which it was last asked about."""
        return self.amount(_Bound(limit, Period(limit.period), limit.unit, 0), self.wall)

    def ask(self, requests: int) -> None:
        """Count requests that are let in, and below 0 those that have ended."""
        self.under_way += requests
        for bound in self.limits:
            if bound.bucket is not None and bound.unit == "requests":
                bound.bucket.add(requests, self.wall)

    def add(self, used: Totals, hour: int) -> None:
        """Count what a request used that came in an hour."""
        for period in Period:
            start = period_start(period, hour)
            known = self.periods.get(period)
            if known is None or known.start < start:
                known = self.periods[period] = _Used(start, period_end(period, start), Totals())
            if known.start == start:
                known.totals.add(used)
        for bound in self.limits:
            if bound.bucket is not None and self.periods[bound.period].start == period_start(bound.period, hour):
                bound.bucket.add(getattr(used, bound.unit), self.wall)

    def over(self, now: float) -> tuple[Limit, int] | None:
        """As of Budgets."""
        self.tried += 1
        reached = None
        for bound in self.limits:
            if self.amount(bound, now) >= bound.most:
                wait = max(1, ceil(period_end(bound.period, now) - now))
            elif bound.bucket is not None and bound.bucket.empty:
                wait = RETRY_SECONDS
            else:
                continue
            reached = (bound.limit, wait) if reached is None or wait > reached[1] else reached
        return reached

    @property
    def busy(self) -> bool:
        """Whether requests are under way."""
        return self.under_way > 0


class Budgets:
    """What each tenant and key with limits by the calendar has used; of others nothing is kept. With ``others`` that
    share limits what this replica may use of them is leased.

    ``informed`` is set once what was used was read from the store, or its read has failed.
    """

    def __init__(self, *, informed: bool = True, others: OtherReplicas | None = None) -> None:
        self._held: dict[str, BudgetUse] = {}
        self._others = OtherReplicas() if others is None else others
        self.informed = asyncio.Event()
        if informed:
            self.informed.set()

    @property
    def held(self) -> Mapping[str, BudgetUse]:
        """By tenants' and keys' names."""
        return self._held

    @property
    def names(self) -> tuple[str, ...]:
        """The tenants and keys, by name, of which it is kept what they use."""
        return tuple(self._held)

    def watch(self, holders: Iterable[TenantRecord | KeyRecord]) -> bool:
        """Keep what those use that have limits by the calendar, and nothing of others; whether any is new."""
        names = {holder.name for holder in holders if holder.has_budget}
        new = names - self._held.keys()
        self._held = {name: self._held.get(name) or BudgetUse() for name in names}
        return bool(new)

    def keeps(self, name: str) -> bool:
        """Whether it is kept what a tenant or key uses."""
        return name in self._held

    def _holding(self, holder: TenantRecord | KeyRecord, now: float) -> BudgetUse | None:
        """What a tenant or key is held to by its present record; None where nothing is kept of it."""
        held = self._held.get(holder.name)
        if held is not None:
            held.hold_to(holder, now, self._others)
        return held

    def begin(self, name: str) -> None:
        """Count a request that is let in, until it ends."""
        if (held := self._held.get(name)) is not None:
            held.ask(1)

    def end(self, name: str) -> None:
        """Count it no longer as under way: it has ended, and what it used is added."""
        held = self._held.get(name)
        if held is not None and held.under_way:
            held.ask(-1)

    def add(self, used: UsageRecord) -> None:
        """Count what requests used that came in one hour."""
        for name in (used.tenant, used.key):
            if (held := self._held.get(name)) is not None:
                held.add(used.totals, used.hour)

    def put(self, found: Mapping[tuple[str, Period], Totals], now: float) -> None:
        """Take what the store says was used by ``now``, with what was counted here and is not in it yet."""
        for name, held in self._held.items():
            for period in Period:
                start = period_start(period, now)
                totals = found.get((name, period)) or Totals()
                held.periods[period] = _Used(start, period_end(period, start), totals)

    def rooms(self, holder: TenantRecord | KeyRecord, now: float) -> Rooms | None:
        """What the limits leave, of several of one unit the one that leaves fewest; None where it has none."""
        held = self._holding(holder, now)
        if held is None:
            return None
        rooms: dict[str, Room] = {}
        for bound in held.limits:
            left = max(0, bound.most - held.amount(bound, now))
            if bound.unit in TOLD and (bound.unit not in rooms or left < rooms[bound.unit].remaining):
                rooms[bound.unit] = Room(bound.most, left, period_end(bound.period, now) - now)
        return Rooms(**rooms)

    def over(self, holder: TenantRecord | KeyRecord, now: float) -> tuple[Limit, int] | None:
        """The limit that is reached, and the whole seconds until its period ends, or RETRY_SECONDS where others may
        have some of it left; None where there is none. Of several the one that is reached for longest.
        """
        held = self._holding(holder, now)
        return None if held is None else held.over(now)
