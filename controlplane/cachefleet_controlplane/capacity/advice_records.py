"""What came of each pool's advice: looks at all pools now and then, and keeps how far off the curve was."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from cachefleet_controlplane.capacity.capacity_report import CapacityReports
from cachefleet_controlplane.capacity.desired_fit import DesiredFit
from cachefleet_controlplane.capacity.pool_reuse import MAX_POOLS
from cachefleet_controlplane.capacity.size_changes import SETTLING, SettlingBounds, SizeChange, SizeChanges
from cachefleet_core.fleet_status.capacity_facts import DesiredFitFacts, SizeChangeFacts

TICK_SECONDS: Final = 10.0
MINUTE_SECONDS: Final = 60


class PoolRecord:
    """Of one pool: changes of its size, and minutes of its desired number of workers."""

    def __init__(self, bounds: SettlingBounds) -> None:
        self.changes = SizeChanges(bounds)
        self.fit = DesiredFit()

    @property
    def judged(self) -> SizeChange | None:
        """The last change that was judged."""
        return self.changes.judged[-1] if self.changes.judged else None

    def shown_changes(self) -> tuple[SizeChangeFacts, ...]:
        """The last ones, the latest first."""
        pending = [self.changes.pending] if self.changes.pending else []
        return tuple(one.shown() for one in (*pending, *reversed(self.changes.judged)))

    def shown_fit(self) -> DesiredFitFacts:
        """The last 24 hours."""
        return self.fit.shown()


class AdviceRecords:
    """Of all pools of which there are reports; ``clock`` is Unix time."""

    def __init__(
        self,
        reports: CapacityReports,
        *,
        bounds: SettlingBounds = SETTLING,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reports = reports
        self._bounds = bounds
        self._clock, self._sleep = clock, sleep
        self._pools: OrderedDict[str, PoolRecord] = OrderedDict()

    async def run(self) -> None:
        """Look at the pools now and then until cancelled."""
        while True:
            await self._sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Look at all pools once."""
        now = self._clock()
        for report in self._reports.all():
            record, noted = self._record(report.measures.key), self._reports.sums(report.measures.key)
            record.changes.step(report, noted, now)
            record.fit.step(report, noted, int(now // MINUTE_SECONDS))

    def of(self, pool: str) -> PoolRecord | None:
        """What came of a pool's advice; None before it was looked at."""
        return self._pools.get(pool)

    def all(self) -> Iterator[tuple[str, PoolRecord]]:
        """Of all pools, by key."""
        return iter(self._pools.items())

    def _record(self, pool: str) -> PoolRecord:
        record = self._pools.get(pool)
        if record is None:
            record = self._pools[pool] = PoolRecord(self._bounds)
            if len(self._pools) > MAX_POOLS:
                self._pools.popitem(last=False)
        self._pools.move_to_end(pool)
        return record
