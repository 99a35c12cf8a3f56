"""What came of each pool's advice: looks at all pools now and then, and keeps how far off the curve was."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from msgspec import ValidationError, convert, to_builtins

from cachefleet_controlplane.capacity.capacity_report import CapacityReports
from cachefleet_controlplane.capacity.desired_fit import DesiredFit
from cachefleet_controlplane.capacity.pool_reuse import MAX_POOLS
from cachefleet_controlplane.capacity.size_changes import SETTLING, SettlingBounds, SizeChange, SizeChanges
from cachefleet_controlplane.judgements.judged_minutes import JudgedMinutes
from cachefleet_controlplane.judgements.judgement_repository import Judged, KeptChange
from cachefleet_core.fleet_status.capacity_facts import DesiredFitFacts, SizeChangeFacts

TICK_SECONDS: Final = 10.0
MINUTE_SECONDS: Final = 60


KIND: Final = "desired"
"""In the store."""


class PoolRecord:
    """Of one pool: changes of its size, and minutes of its desired number of workers."""

    def __init__(self, bounds: SettlingBounds) -> None:
        self.changes = SizeChanges(bounds)
        self.fit = DesiredFit()
        self.restored = False
        """Whether what was kept of it was read."""
        self._written: dict[float, SizeChange | None] = {}
        """By their time, as they were written last; None where one was dropped that is to be deleted."""

    @property
    def judged(self) -> SizeChange | None:
        """The last change that was judged."""
        return self.changes.judged[-1] if self.changes.judged else None

    def shown_changes(self) -> tuple[SizeChangeFacts, ...]:
        """The last ones, the latest first."""
        pending = [self.changes.pending] if self.changes.pending else []
        return tuple(one.shown() for one in (*pending, *reversed(self.changes.judged)))

    def take_changed(self, pool: str) -> list[KeptChange]:
        """What is to be written; it counts as written from now on."""
        there = {one.at: one for one in (*self.changes.judged, self.changes.pending) if one is not None}
        judged = min(there, default=0.0)
        changed = [
            KeptChange(pool, at, to_builtins(one)) for at, one in there.items() if self._written.get(at) is not one
        ]
        changed += [KeptChange(pool, at, None) for at in self._written.keys() - there.keys() if at > judged]
        self._written = dict(there)
        return changed

    def put_back(self, one: KeptChange) -> None:
        """It could not be written: it is to be written, or deleted, the next time."""
        if one.change is None:
            self._written[one.at] = None
        else:
            self._written.pop(one.at, None)

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
        for pool in self._pools.keys() - self._reports.declared().keys():
            del self._pools[pool]
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

    def judged(self) -> Iterator[tuple[Judged, JudgedMinutes]]:
        """Minutes of the desired numbers of workers, to be kept in the store."""
        return ((Judged(KIND, pool, ""), record.fit.judged) for pool, record in self._pools.items())

    def unread(self) -> Iterator[str]:
        """Pools whose changes were not read from the store yet."""
        return (pool for pool, record in self._pools.items() if not record.restored)

    def restore(self, pool: str, kept: Sequence[KeptChange]) -> None:
        """Go on from what was kept; of a later release's what cannot be read is left out."""
        record = self._record(pool)
        record.changes.restore(change for one in kept if (change := _read(one)) is not None)
        record.restored = True

    def take_changed(self) -> list[KeptChange]:
        """Changes of size that are not as they were written, and those that were dropped since."""
        return [one for pool, record in self._pools.items() if record.restored for one in record.take_changed(pool)]

    def put_back(self, changes: Sequence[KeptChange]) -> None:
        """These could not be written."""
        for one in changes:
            if (record := self._pools.get(one.pool)) is not None:
                record.put_back(one)

    def _record(self, pool: str) -> PoolRecord:
        record = self._pools.get(pool)
        if record is None:
            record = self._pools[pool] = PoolRecord(self._bounds)
            if len(self._pools) > MAX_POOLS:
                self._pools.popitem(last=False)
        self._pools.move_to_end(pool)
        return record


def _read(kept: KeptChange) -> SizeChange | None:
    try:
        return convert(kept.change, SizeChange)
    except ValidationError:
        return None
