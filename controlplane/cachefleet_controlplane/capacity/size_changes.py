"""A pool's changes of size: what the curve foretold for the new one, and what came of it. Pure: time is an argument.

When the number of workers or the budget changes, the curve of before says what the new size will serve. That is
compared with what was served once the caches have filled:

| phase | ends when | then |
|---|---|---|
| ``filling`` | what was computed would fill all caches, or ``fill_seconds``; and ``fill_requests`` | ``measuring`` |
| ``measuring`` | ``measured_requests`` were answered, in ``measured_seconds`` or longer | ``judged`` |

A pool that is back at its old size while its caches fill, as in a rollout, has not changed. One that has yet another
size then is foretold anew, by the curve of before the first change. What is not judged ``most_seconds`` after the
change, or has another size while it is measured, is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.capacity.advice import advise, mib, points, size_of
from cachefleet_controlplane.capacity.capacity_report import PoolCapacity
from cachefleet_controlplane.capacity.pool_reuse import ReuseSums
from cachefleet_core.fleet_status.capacity_facts import FILLING, JUDGED, MEASURING, PHASES, SizeChangeFacts, SizeFacts

MOST_KEPT: Final = 8
"""Judged changes of one pool."""
AT_ONCE_SECONDS: Final = 120.0
"""Within so long replicas see the same change."""
SAME: Final = 0.01
"""Of a budget: no change, but a worker whose engine found a little more or less memory."""


class SettlingPhase(StrEnum):
    """How far a change is."""

    FILLING = FILLING
    MEASURING = MEASURING
    JUDGED = JUDGED


class SettlingBounds(Struct, frozen=True, kw_only=True):
    """When a pool's new size has settled: requests, and seconds since its change."""

    fill_requests: int = 50
    fill_seconds: float = 3600.0
    measured_requests: int = 200
    measured_seconds: float = 600.0
    most_seconds: float = 86_400.0


SETTLING: Final = SettlingBounds()
"""As in every installation."""


class SizeChange(Struct, frozen=True, kw_only=True):
    """One change; rates are prompt tokens a second."""

    at: float
    """Unix time."""
    before: SizeFacts
    """What was served at the old size."""
    foretold: SizeFacts
    """At the new one, by the curve of before."""
    advised: str = ""
    """The advice of before that names this size, as its action; "" where it was the curve alone."""
    phase: SettlingPhase = SettlingPhase.FILLING
    seconds: float = 0.0
    """Of this phase."""
    sums: ReuseSums = ReuseSums()
    """Of this phase."""
    asked_tokens: float = 0.0
    """Prompt tokens that the pool's engines were asked in this phase."""

    @property
    def came_ratio(self) -> float | None:
        """The hit ratio that came; None before it is judged."""
        return self.sums.served_ratio if self.phase is SettlingPhase.JUDGED else None

    @property
    def came_computed(self) -> float | None:
        """Prompt tokens a second that were computed; None before it is judged."""
        if self.came_ratio is None or not self.seconds:
            return None
        return (1 - self.came_ratio) * self.asked_tokens / self.seconds

    @property
    def error(self) -> float | None:
        """The hit ratio that was foretold, less the one that came."""
        return None if self.came_ratio is None else self.foretold.hit_ratio - self.came_ratio

    @property
    def computed_error(self) -> float | None:
        """The computed load that was foretold, less the one that came, in tokens a second."""
        return None if self.came_computed is None else self.foretold.computed_tokens_per_second - self.came_computed

    def shown(self) -> SizeChangeFacts:
        """The change, as it is told."""
        return SizeChangeFacts(
            at=datetime.fromtimestamp(self.at, UTC),
            words=self._words(),
            before=self.before,
            foretold=self.foretold,
            advised=self.advised,
            phase=self.phase,
            requests=self.sums.requests,
            hit_ratio=self.came_ratio,
            computed_tokens_per_second=self.came_computed,
            error=self.error,
            computed_error=self.computed_error,
        )

    def _words(self) -> str:
        told = f"{_sizes(self.before, self.foretold)}: {100 * self.foretold.hit_ratio:.0f} % hits foretold"
        if self.came_ratio is None or self.error is None:
            return f"{told}, what comes is not known yet ({self.phase})"
        return f"{told}, {100 * self.came_ratio:.0f} % came ({points(self.error)} points off)"


class SizeChanges:
    """Of one pool."""

    def __init__(self, bounds: SettlingBounds) -> None:
        self._bounds = bounds
        self._settled: PoolCapacity | None = None
        """The last report of the last size whose caches had filled."""
        self._noted = ReuseSums()
        self._at = 0.0
        self.pending: SizeChange | None = None
        self.judged: deque[SizeChange] = deque(maxlen=MOST_KEPT)
        """The last ones."""

    def restore(self, kept: Iterable[SizeChange]) -> None:
        """Go on from what was kept, the latest last; what this process has seen itself meanwhile stands."""
        found = _once(kept)
        own = list(self.judged)
        self.judged = deque([*(one for one in found if one.phase is SettlingPhase.JUDGED), *own], maxlen=MOST_KEPT)
        if self.pending is None and not own and found and found[-1].phase is not SettlingPhase.JUDGED:
            self.pending = found[-1]

    def step(self, report: PoolCapacity, noted: ReuseSums, now: float) -> None:
        """Look at a pool: ``noted`` are the sums of all its requests since this process began, ``now`` Unix time."""
        new = noted.less(self._noted) if self._at else ReuseSums()
        seconds = max(0.0, now - self._at) if self._at else 0.0
        self._noted, self._at = noted, now
        self._pend(report, now)
        if self.pending is not None:
            self._go_on(self.pending, report, new, seconds, now)
        if self.pending is None or self.pending.phase is SettlingPhase.MEASURING:
            self._settled = report

    def _pend(self, report: PoolCapacity, now: float) -> None:
        """Begin, renew or drop the change that is looked at, by the size of now."""
        pending, size = self.pending, _size(report)
        if pending is not None and not _same(pending.foretold, size):
            self.pending = None
        elif pending is not None:
            return
        if self._settled is not None and not _same(_size(self._settled), size):
            self.pending = _change(self._settled, report, now)

    def _go_on(self, pending: SizeChange, report: PoolCapacity, new: ReuseSums, seconds: float, now: float) -> None:
        """Count what came since the last look, and end the phase or the change."""
        if pending.at == now:
            return
        pending = replace(
            pending,
            seconds=pending.seconds + seconds,
            sums=pending.sums.plus(new),
            asked_tokens=pending.asked_tokens + report.curve.asked_rate * seconds,
        )
        self.pending = self._next(pending, report, now)

    def _next(self, pending: SizeChange, report: PoolCapacity, now: float) -> SizeChange | None:
        if pending.phase is SettlingPhase.FILLING and self._filled(pending, report):
            return replace(pending, phase=SettlingPhase.MEASURING, seconds=0.0, sums=ReuseSums(), asked_tokens=0.0)
        if pending.phase is SettlingPhase.MEASURING and self._measured(pending):
            self.judged.append(replace(pending, phase=SettlingPhase.JUDGED))
            return None
        return None if now - pending.at > self._bounds.most_seconds else pending

    def _filled(self, pending: SizeChange, report: PoolCapacity) -> bool:
        filled = pending.sums.computed_blocks >= report.measures.own or pending.seconds >= self._bounds.fill_seconds
        return filled and pending.sums.requests >= self._bounds.fill_requests

    def _measured(self, pending: SizeChange) -> bool:
        enough = pending.sums.requests >= self._bounds.measured_requests
        return enough and pending.seconds >= self._bounds.measured_seconds


def _once(kept: Iterable[SizeChange]) -> list[SizeChange]:
    """Changes in order, of those that several replicas saw the one with the most requests."""
    found: list[SizeChange] = []
    for one in kept:
        if found and _same(found[-1].foretold, one.foretold) and one.at - found[-1].at <= AT_ONCE_SECONDS:
            found[-1] = max(found[-1], one, key=lambda each: (PHASES.index(each.phase), each.sums.requests))
        else:
            found.append(one)
    return found


def _change(before: PoolCapacity, report: PoolCapacity, now: float) -> SizeChange | None:
    """The change to the size of ``report``; None where no curve tells of it."""
    old, new = before.measures, report.measures
    if not old.budget and new.budget:
        return None
    factor = new.budget / old.budget if old.budget and not _near(new.budget, old.budget) else 1.0
    point, size = before.curve.at(new.workers, factor), _size(report)
    then = replace(
        size,
        budget_factor=factor,
        hit_ratio=point.hit_ratio,
        computed_tokens_per_second=point.computed_tokens_per_second,
    )
    advised = (one.action for one in advise(old, before.curve, before.desired).items if _same(one.size, then))
    served = replace(_size(before), hit_ratio=before.asked.served_ratio)
    return SizeChange(at=now, before=served, foretold=then, advised=next(advised, ""))


def _sizes(before: SizeFacts, then: SizeFacts) -> str:
    """What has changed, in words: 2 -> 3 workers, 8 GiB -> 16 GiB budget."""
    workers = f"{before.workers} -> {then.workers} workers" if before.workers != then.workers else ""
    near = _near(before.budget_mib, then.budget_mib)
    budget = "" if near else f"{mib(before.budget_mib)} -> {mib(then.budget_mib)} budget"
    return ", ".join(filter(None, (workers, budget)))


def _size(report: PoolCapacity) -> SizeFacts:
    return size_of(report.measures, report.now)


def _same(one: SizeFacts, other: SizeFacts) -> bool:
    return one.workers == other.workers and _near(one.budget_mib, other.budget_mib)


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= SAME * max(one, other)
