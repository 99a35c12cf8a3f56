"""Whether the load fitted as many workers as were desired, by the minute. Pure: minutes are numbers since 1970.

A minute is judged where the pool had the number of workers that was desired as it began, until it ended, and requests
were answered in it. It fitted where no row holds:

| row | holds where |
|---|---|
| ``queue`` | requests waited for room, or prompts for longer than QUEUE_SECONDS on each worker |
| ``tokens`` | more than HEADROOM of what the workers compute was computed |
| ``cache`` | the pool missed its objective of the hit ratio |
"""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.capacity.capacity_report import PoolCapacity
from cachefleet_controlplane.capacity.desired_workers import HEADROOM, QUEUE_SECONDS, ScalingReason
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_controlplane.capacity.pool_reuse import ReuseSums
from cachefleet_controlplane.judgements.judged_minutes import HOUR_MINUTES, JudgedMinutes, Tally
from cachefleet_core.fleet_status.capacity_facts import DesiredFitFacts

DAY_HOURS: Final = 24
REASONS: Final = (ScalingReason.QUEUE, ScalingReason.TOKENS, ScalingReason.CACHE)


class DesiredFit:
    """Of one pool."""

    def __init__(self) -> None:
        self.judged = JudgedMinutes(DAY_HOURS + 1)
        self.total = Tally()
        """Since this process began."""
        self._minute = 0
        self._desired: int | None = None
        """As the minute began; None where the pool has, or had, another number."""
        self._noted = ReuseSums()
        self._queued = False

    def step(self, report: PoolCapacity, noted: ReuseSums, minute: int) -> None:
        """Look at a pool; ``noted`` are the sums of all its requests since this process began."""
        measures = report.measures
        self._queued |= waits(measures)
        if measures.workers != self._desired:
            self._desired = None
        if minute == self._minute:
            return  # a clock that is set back begins anew
        new = noted.less(self._noted)
        if self._desired is not None and minute == self._minute + 1 and new.requests:
            self._judge(missed(measures, new, report.curve.asked_rate, queued=self._queued))
        named = report.desired.workers if report.desired else None
        self._desired = named if named == measures.workers else None
        self._minute, self._noted, self._queued = minute, noted, waits(measures)

    def _judge(self, reasons: tuple[ScalingReason, ...]) -> None:
        before = self.total.minutes
        self.judged.judge(self._minute, reasons)
        self.total.minutes = before + 1
        self.total.met += not reasons
        self.total.misses.update(reasons)

    def shown(self) -> DesiredFitFacts:
        """The last 24 hours, as they are told."""
        tally = self.judged.tally(self._minute - DAY_HOURS * HOUR_MINUTES, self._minute)
        return DesiredFitFacts(
            minutes=tally.minutes,
            fitted_minutes=tally.met,
            fitted=tally.met / tally.minutes if tally.minutes else None,
            missed_minutes={str(reason): count for reason, count in tally.misses.items()},
        )


def waits(measures: PoolMeasures) -> bool:
    """Whether there is a queue, as ``desired_workers`` has it."""
    return measures.queued_requests > 0 or measures.backlog_seconds > QUEUE_SECONDS


def missed(measures: PoolMeasures, served: ReuseSums, asked_rate: float, *, queued: bool) -> tuple[ScalingReason, ...]:
    """Why a minute's load did not fit; nothing where it did. ``asked_rate`` is in prompt tokens a second."""
    computed = (1 - served.served_ratio) * asked_rate
    rows = (
        (ScalingReason.QUEUE, queued),
        (ScalingReason.TOKENS, computed > HEADROOM * measures.prefill_rate * measures.workers),
        (ScalingReason.CACHE, measures.objective_missed),
    )
    return tuple(reason for reason, holds in rows if holds)
