"""What tenants, and keys with limits of their own, have used in the present day and month of UTC, held against these.
Pure; times are Unix seconds.

Tokens are those computed of prompts and those generated. What a request used counts in the period in which it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import ceil
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.store.tenant_records import BUDGET, KeyRecord, TenantRecord, Totals, UsageRecord
from cachefleet_controlplane.tenants.limits import Limit
from cachefleet_controlplane.tenants.rate_limit_headers import Room


class Period(StrEnum):
    """A span of UTC's calendar for which a tenant has limits."""

    DAY = "day"
    MONTH = "month"


LIMITS: Final = (
    (Limit.TOKENS_PER_DAY, Period.DAY, "tokens"),
    (Limit.TOKENS_PER_MONTH, Period.MONTH, "tokens"),
    (Limit.SPEND_PER_DAY, Period.DAY, "charged"),
    (Limit.SPEND_PER_MONTH, Period.MONTH, "charged"),
)
"""Each limit by the calendar, its period, and what of Totals it limits."""
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


def has_budget(holder: TenantRecord | KeyRecord) -> bool:
    """Whether a tenant or key has a limit by the calendar."""
    return any(getattr(holder, limit) is not None for limit in BUDGET)


def _name(holder: TenantRecord | KeyRecord) -> str:
    """By which it is counted what a tenant or key uses."""
    return holder.name if isinstance(holder, TenantRecord) else holder.budget_name


class _Used(Struct):
    """What was used in a period."""

    start: int
    end: int
    totals: Totals

    def of(self, now: float) -> Totals:
        """What was used in the period in which ``now`` is."""
        return self.totals if now < self.end else _NOTHING


_NOTHING: Final = Totals()


class Budgets:
    """What each tenant and key with limits by the calendar has used; of others nothing is kept.

    ``informed`` is set once that was read from the store, or its read has failed.
    """

    def __init__(self, *, informed: bool = True) -> None:
        self._used: dict[str, dict[Period, _Used]] = {}
        self.informed = asyncio.Event()
        if informed:
            self.informed.set()

    @property
    def names(self) -> tuple[str, ...]:
        """The tenants, and keys by their ``budget_name``, of which it is kept what they use."""
        return tuple(self._used)

    def watch(self, holders: Iterable[TenantRecord | KeyRecord]) -> bool:
        """Keep what those use that have limits by the calendar, and nothing of others; whether any is new."""
        names = {_name(holder) for holder in holders if has_budget(holder)}
        new = names - self._used.keys()
        self._used = {name: self._used.get(name, {}) for name in names}
        return bool(new)

    def add(self, used: UsageRecord) -> None:
        """Count what requests used that came in one hour."""
        for name in (used.tenant, used.key):
            periods = self._used.get(name)
            if periods is not None:
                self._add(periods, used)

    def _add(self, periods: dict[Period, _Used], used: UsageRecord) -> None:
        for period in Period:
            start = period_start(period, used.hour)
            known = periods.get(period)
            if known is None or known.start < start:
                known = periods[period] = _Used(start, period_end(period, start), Totals())
            if known.start == start:
                known.totals.add(used)

    def put(self, found: Mapping[tuple[str, Period], Totals], now: float) -> None:
        """Take what the store says was used by ``now``, with what was counted here and is not in it yet."""
        for name in self._used:
            for period in Period:
                start = period_start(period, now)
                totals = found.get((name, period)) or Totals()
                self._used[name][period] = _Used(start, period_end(period, start), totals)

    def room(self, holder: TenantRecord | KeyRecord, now: float) -> Room | None:
        """What the limit of tokens leaves that leaves fewest; None where there is none."""
        rooms = []
        for limit, period, member in LIMITS:
            most = getattr(holder, limit)
            if most is None or member != "tokens":
                continue
            used = self._used.get(_name(holder), {}).get(period)
            tokens = 0 if used is None else used.of(now).tokens
            rooms.append(Room(most, max(0, most - tokens), period_end(period, now) - now))
        return min(rooms, key=lambda room: room.remaining, default=None)

    def over(self, holder: TenantRecord | KeyRecord, now: float) -> tuple[Limit, int] | None:
        """The limit that is reached, and the whole seconds until its period ends; None where there is none.

        Of several the one that is reached for longest.
        """
        periods = self._used.get(_name(holder))
        if not periods:
            return None
        reached = None
        for limit, period, member in LIMITS:
            most, used = getattr(holder, limit), periods.get(period)
            if most is not None and used is not None and getattr(used.of(now), member) >= most:
                wait = max(1, ceil(used.end - now))
                reached = (limit, wait) if reached is None or wait > reached[1] else reached
        return reached
