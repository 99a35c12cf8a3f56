"""What a pool's recorded requests would have been served by fleets of other sizes, played in outline. Pure.

An outline tells differences: of the hit ratio at another size it says how much more or less it is than at today's, by
which the reuse distances' curve is corrected. Between sizes that were played the correction is interpolated, beyond
them it is that of the last one. It counts where it is fresh, of today's size, and near what was served of the same
requests.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.capacity.pool_measures import PoolMeasures

FRESH_SECONDS: Final = 900.0
"""An older outline says nothing."""
MOST_ERROR: Final = 0.05
"""Of the hit ratio: an outline further off what was served says nothing."""
SAME_BUDGET: Final = 0.01
"""Budgets that differ by less, as a share, are one."""


class OutlinedSizes(Struct, frozen=True, kw_only=True):
    """Of one pool; ratios are those of the prompt tokens that come from cache."""

    made_at: float
    """Monotonic."""
    workers: int
    budget: float
    """Today's, when it was made: idle blocks of each worker."""
    requests: int
    """Counted ones; as many before them filled the caches."""
    served: float
    """What was served of these."""
    by_workers: Sequence[tuple[int, float]]
    """At rising numbers of workers, today's among them."""
    by_budget: Sequence[tuple[float, float]]
    """At rising factors of the budget, 1 among them."""

    @property
    def today(self) -> float:
        """At today's size."""
        return dict(self.by_workers)[self.workers]

    @property
    def error(self) -> float:
        """At today's size, less what was served."""
        return self.today - self.served

    def tells_of(self, measures: PoolMeasures, now: float) -> bool:
        """Whether it counts for a pool as it is now."""
        fresh = now - self.made_at < FRESH_SECONDS and abs(self.error) <= MOST_ERROR
        return fresh and self.is_of(measures)

    def is_of(self, measures: PoolMeasures) -> bool:
        """Whether it was made of the pool's size."""
        return self.workers == measures.workers and math.isclose(self.budget, measures.budget, rel_tol=SAME_BUDGET)


class Correction:
    """What is added to a curve that says ``curve`` of so many workers and times the budget."""

    def __init__(self, outlined: OutlinedSizes, curve: Callable[[int, float], float]) -> None:
        today = curve(outlined.workers, 1.0)
        self._by_workers = [
            (float(workers), (ratio - outlined.today) - (curve(workers, 1.0) - today))
            for workers, ratio in outlined.by_workers
        ]
        self._by_budget = [
            (math.log(factor), (ratio - outlined.today) - (curve(outlined.workers, factor) - today))
            for factor, ratio in outlined.by_budget
        ]

    def at(self, workers: int, factor: float) -> float:
        """In hit ratio; where both differ from today's, both corrections."""
        budget = _between(self._by_budget, math.log(factor)) if factor > 0 else self._by_budget[0][1]
        return _between(self._by_workers, float(workers)) + budget


def _between(points: Sequence[tuple[float, float]], place: float) -> float:
    """The value at a place by the straight line between its neighbours; of those at the ends beyond them."""
    after = bisect_left(points, place, key=lambda point: point[0])
    if after in {0, len(points)}:
        return points[min(after, len(points) - 1)][1]
    (low, before), (high, behind) = points[after - 1], points[after]
    return before + (behind - before) * (place - low) / (high - low)
