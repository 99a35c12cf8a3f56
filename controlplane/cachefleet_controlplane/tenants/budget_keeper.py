"""``BudgetKeeper``: has the budgets know what all replicas' tenants have used, from the usage in the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import Totals
from cachefleet_controlplane.tenants.budgets import Budgets, Period, period_start
from cachefleet_controlplane.tenants.directory import Tenants

logger = logging.getLogger(__name__)

READ_SECONDS: Final = 5.0
"""How often it is read what other replicas have written."""
HOUR: Final = 3600
RECENT_HOURS: Final = 2
"""Hours that are read anew each time; the ones before, of which little can change, once an hour."""
_EVER: Final = 2**62
_Found = dict[tuple[str, bool], Totals]


class UsageTotals(Protocol):
    """What is needed of the usage log."""

    async def spent(self, names: Sequence[str], *, start: int, end: int, day: int) -> _Found:
        """What tenants and keys used by now in hours of a span, by name and by whether since ``day``. StoreError."""
        ...


class BudgetKeeper:
    """Keeps ``budgets`` fresh; run ``run()`` as a task. ``wall_clock`` is Unix time in seconds.

    Where the store fails, what was known and what is used here count on.
    """

    def __init__(
        self,
        budgets: Budgets,
        tenants: Tenants,
        usage: UsageTotals,
        *,
        metrics: Metrics,
        wall_clock: Callable[[], float],
    ) -> None:
        self._budgets = budgets
        self._tenants = tenants
        self._usage = usage
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._past: _Found = {}
        self._past_of: tuple[int, int, int, tuple[str, ...]] | None = None
        self._new = asyncio.Event()
        self.problem = ""
        """Why what other replicas used is not known; "" while all is well."""
        tenants.on_change(self._changed)

    async def run(self) -> None:
        """Read what all have used every few seconds, and at once for new limits, until cancelled."""
        await self._tenants.informed.wait()
        while True:
            await self.refresh()
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_SECONDS):
                    await self._new.wait()

    async def refresh(self) -> None:
        """Read now what all have used; where the store fails, ``problem`` says why."""
        self._new.clear()
        try:
            if names := self._budgets.names:
                await self._read(names)
            self.problem = ""
        except StoreError as error:
            if self.problem != str(error):
                logger.warning("what tenants have used elsewhere cannot be read: %s", error, extra={"kind": error.kind})
            self.problem = str(error)
            self._metrics.store_error(error.kind)
        finally:
            self._budgets.informed.set()

    async def _read(self, names: tuple[str, ...]) -> None:
        now = self._wall_clock()
        month, day = period_start(Period.MONTH, now), period_start(Period.DAY, now)
        recent = max(month, (int(now) // HOUR - RECENT_HOURS) * HOUR)
        if self._past_of != (span := (month, day, recent, names)):
            self._past = await self._usage.spent(names, start=month, end=recent, day=day)
            self._past_of = span
        found = await self._usage.spent(names, start=recent, end=_EVER, day=day)
        self._budgets.put(_by_period((self._past, found)), now)

    def _changed(self) -> None:
        directory = self._tenants.directory
        if self._budgets.watch((*directory.tenants.values(), *directory.budgets.values())):
            self._new.set()


def _by_period(found: Sequence[_Found]) -> dict[tuple[str, Period], Totals]:
    """Sums of parts of a month, for the day and the month."""
    sums: dict[tuple[str, Period], Totals] = {}
    for part in found:
        for (name, today), totals in part.items():
            for period in (Period.DAY, Period.MONTH) if today else (Period.MONTH,):
                sums.setdefault((name, period), Totals()).add(totals)
    return sums
