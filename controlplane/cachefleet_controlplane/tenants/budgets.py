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
from operator import itemgetter
from typing import Final

from msgspec import Struct, field

from cachefleet_controlplane.store.tenant_records import KeyRecord, TenantRecord, Totals, UsageRecord
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
    """A limit of a tenant or key, and what of Totals it limits to ``most``."""

    limit: Limit
    period: Period
    unit: str
    most: int


class _Held(Struct):
    """What a tenant or key is held to, and what it used."""

    holder: TenantRecord | KeyRecord | None = None
    """Whose record the limits were bound from."""
    limits: tuple[_Bound, ...] = ()
    used: dict[Period, _Used] = field(default_factory=dict)
    under_way: int = 0
    """Requests that were let in and have not ended."""

    def amount(self, bound: _Bound, now: float) -> int:
        """What counts against a limit in the period in which ``now`` is."""
        used = self.used.get(bound.period)
        amount: int = getattr(_NOTHING if used is None else used.of(now), bound.unit)
        return amount + self.under_way if bound.unit == "requests" else amount

    def add(self, used: Totals, hour: int) -> None:
        """Count what a request used that came in an hour."""
        for period in Period:
            start = period_start(period, hour)
            known = self.used.get(period)
            if known is None or known.start < start:
                known = self.used[period] = _Used(start, period_end(period, start), Totals())
            if known.start == start:
                known.totals.add(used)


def _bound(holder: TenantRecord | KeyRecord) -> tuple[_Bound, ...]:
    """The limits by the calendar that a tenant or key has."""
    found = ((limit, getattr(holder, limit)) for limit in BUDGET)
    return tuple(_Bound(limit, Period(limit.period), limit.unit, most) for limit, most in found if most is not None)


class Budgets:
    """What each tenant and key with limits by the calendar has used; of others nothing is kept.

    ``informed`` is set once that was read from the store, or its read has failed.
    """

    def __init__(self, *, informed: bool = True) -> None:
        self._held: dict[str, _Held] = {}
        self.informed = asyncio.Event()
        if informed:
            self.informed.set()

    @property
    def names(self) -> tuple[str, ...]:
        """The tenants and keys, by name, of which it is kept what they use."""
        return tuple(self._held)

    def watch(self, holders: Iterable[TenantRecord | KeyRecord]) -> bool:
        """Keep what those use that have limits by the calendar, and nothing of others; whether any is new."""
        names = {holder.name for holder in holders if holder.has_budget}
        new = names - self._held.keys()
        self._held = {name: self._held.get(name) or _Held() for name in names}
        return bool(new)

    def _holding(self, holder: TenantRecord | KeyRecord) -> _Held | None:
        """What a tenant or key is held to by its present record; None where nothing is kept of it."""
        held = self._held.get(holder.name)
        if held is not None and held.holder is not holder:
            held.holder, held.limits = holder, _bound(holder)
        return held

    def keeps(self, name: str) -> bool:
        """Whether it is kept what a tenant or key uses."""
        return name in self._held

    def begin(self, name: str) -> None:
        """Count a request that is let in, until it ends."""
        if (held := self._held.get(name)) is not None:
            held.under_way += 1

    def end(self, name: str) -> None:
        """Count it no longer as under way: it has ended, and what it used is added."""
        held = self._held.get(name)
        if held is not None and held.under_way:
            held.under_way -= 1

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
                held.used[period] = _Used(start, period_end(period, start), totals)

    def rooms(self, holder: TenantRecord | KeyRecord, now: float) -> Rooms | None:
        """What the limits leave, of several of one unit the one that leaves fewest; None where it has none."""
        held = self._holding(holder)
        if held is None:
            return None
        rooms: dict[str, Room] = {}
        for bound in held.limits:
            left = max(0, bound.most - held.amount(bound, now))
            if bound.unit in TOLD and (bound.unit not in rooms or left < rooms[bound.unit].remaining):
                rooms[bound.unit] = Room(bound.most, left, period_end(bound.period, now) - now)
        return Rooms(**rooms)

    def over(self, holder: TenantRecord | KeyRecord, now: float) -> tuple[Limit, int] | None:
        """The limit that is reached, and the whole seconds until its period ends; None where there is none.

        Of several the one that is reached for longest.
        """
        held = self._holding(holder)
        if held is None:
            return None
        reached = [bound for bound in held.limits if held.amount(bound, now) >= bound.most]
        waits = [(bound.limit, max(1, ceil(period_end(bound.period, now) - now))) for bound in reached]
        return max(waits, key=itemgetter(1), default=None)
