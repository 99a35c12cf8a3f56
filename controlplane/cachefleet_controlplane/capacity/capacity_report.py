"""What each pool's caches would serve at other sizes, as it is shown: in metrics, the admin API and the console."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cachefleet_controlplane.capacity.desired_workers import Desired, DesiredWorkers, PoolDemand
from cachefleet_controlplane.capacity.hit_curve import CurvePoint, HitCurve
from cachefleet_controlplane.capacity.outlined_sizes import OutlinedSizes
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures, pool_measures
from cachefleet_controlplane.capacity.pool_reuse import PoolReuse, PoolReuses, ReuseCurve, ReuseSums, Window
from cachefleet_controlplane.workers.views import FleetView, ServedModel
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.tenancy import TenantId

KEPT_SECONDS: Final = 5.0
"""A report is made anew after so long."""
REQUESTS_NEEDED: Final = 50.0
"""Of the window, before anything is said."""
MORE_WORKERS: Final = (-2, -1, 0, 1, 2, 4)
"""What is told of, beside today's number."""
BUDGETS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Times today's budget."""


@dataclass(frozen=True, slots=True)
class TenantCurve:
    """What one tenant's requests would be served: hit ratios at the sizes that its pool's report has."""

    tenant: TenantId
    asked: ReuseCurve
    by_workers: tuple[float, ...]
    by_budget: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """One pool."""

    measures: PoolMeasures
    window: Window
    asked: ReuseCurve
    """Requests of the window, and what was served."""
    sampled: float
    """The share of blocks that is looked at."""
    error: float
    """What one cache of today's size would have served, less what was served."""
    now: CurvePoint
    by_workers: tuple[CurvePoint, ...]
    """At today's number and those of MORE_WORKERS from 1 on."""
    by_budget: tuple[CurvePoint, ...]
    tenants: tuple[TenantCurve, ...] = ()
    curve: HitCurve
    outline_age: float | None = None
    """Seconds since its requests were played in outline; None where the curve is of reuse distances alone."""
    desired: Desired | None = None
    """None where no worker has measured its rate."""


class CapacityReports:
    """Makes reports and keeps them ``kept_seconds``; ``clock`` is that of what is noted in ``reuses``, and of what is
    put into ``outlined``, by pool.
    """

    def __init__(
        self,
        reuses: PoolReuses,
        view: Callable[[], FleetView],
        models: Callable[[], Sequence[ServedModel]],
        *,
        clock: Callable[[], float] = time.monotonic,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self._reuses = reuses
        self._view = view
        self._models = models
        self.outlined: Mapping[str, OutlinedSizes] = {}
        self._clock = clock
        self._kept_seconds = kept_seconds
        self._made_at = float("-inf")
        self._reports: list[PoolCapacity] = []
        self._desired: dict[str, DesiredWorkers] = {}

    def all(self) -> list[PoolCapacity]:
        """Of the pools of which enough is known, made lately."""
        now = self._clock()
        if now - self._made_at >= self._kept_seconds:
            self._made_at = now
            self._reports = [self._with_desired(one, now) for one in self._made(now)]
            told = {one.measures.key for one in self._reports}
            self._desired = {key: desired for key, desired in self._desired.items() if key in told}
        return self._reports

    def of(self, pool: str, window: Window) -> PoolCapacity | None:
        """Of one pool, made now; None where too little is known."""
        now = self._clock()
        return next((self._of(one, window, now) for one in self._measures() if one.key == pool), None)

    def requests(self, pool: str) -> float:
        """Of the recent window, faded: how many of a pool's requests are known."""
        reuse = self._reuses.of(pool)
        return reuse.curve(Window.RECENT, [1.0], self._clock()).requests if reuse else 0.0

    def sums(self, pool: str) -> ReuseSums:
        """All of a pool's requests since this process began."""
        reuse = self._reuses.of(pool)
        return reuse.sums if reuse else ReuseSums()

    def declared(self) -> dict[str, PrefixCachePool]:
        """All pools that there are, by key."""
        return {pool.key: pool for model in self._models() for pool in model.declared}

    def _made(self, now: float) -> list[PoolCapacity]:
        made = (self._of(one, Window.RECENT, now) for one in self._measures())
        return [one for one in made if one is not None]

    def _with_desired(self, one: PoolCapacity, now: float) -> PoolCapacity:
        """The report with what its pool should have, by all that was wanted lately."""
        if not one.measures.rate_measured:
            return one
        desired = self._desired.setdefault(one.measures.key, DesiredWorkers())
        return replace(one, desired=desired.at(now, demand(one.measures), one.curve.by_distances().at))

    def _measures(self) -> list[PoolMeasures]:
        return pool_measures(self._view(), self.declared().get)

    def _of(self, measures: PoolMeasures, window: Window, now: float) -> PoolCapacity | None:
        reuse = self._reuses.of(measures.key)
        if reuse is None:
            return None
        reuse.fit(measures.own)
        ask = partial(reuse.curve, window, now=now)
        if ask([1.0]).requests < REQUESTS_NEEDED:
            return None
        return pool_capacity(measures, reuse, window, now, self.outlined.get(measures.key))


def pool_capacity(
    measures: PoolMeasures, reuse: PoolReuse, window: Window, now: float, outlined: OutlinedSizes | None = None
) -> PoolCapacity:
    """The report of one pool, whatever it rests on."""
    told = outlined if outlined is not None and outlined.tells_of(measures, now) else None
    curve = HitCurve(measures, partial(reuse.curve, window, now=now), told)
    by_workers, by_budget = _sizes(measures)
    return PoolCapacity(
        measures=measures,
        window=window,
        asked=curve.now,
        sampled=reuse.sampled,
        error=curve.error,
        now=curve.at(measures.workers),
        by_workers=tuple(curve.points(by_workers)),
        by_budget=tuple(curve.points(by_budget)),
        tenants=tuple(_by_tenant(curve, reuse, measures, now)),
        curve=curve,
        outline_age=now - told.made_at if told else None,
    )


def demand(measures: PoolMeasures) -> PoolDemand:
    """What is asked of a pool now."""
    return PoolDemand(
        workers=measures.workers,
        rate=measures.prefill_rate,
        backlog_seconds=measures.backlog_seconds,
        queued_requests=measures.queued_requests,
        objective=measures.objective,
    )


def _sizes(measures: PoolMeasures) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Numbers of workers with today's budget, and today's number with other budgets."""
    numbers = [measures.workers + more for more in MORE_WORKERS if measures.workers + more > 0]
    return [(number, 1.0) for number in numbers], [(measures.workers, factor) for factor in BUDGETS]


def _by_tenant(curve: HitCurve, reuse: PoolReuse, measures: PoolMeasures, now: float) -> list[TenantCurve]:
    """Of each tenant, the one with most requests first."""
    by_workers, by_budget = _sizes(measures)
    found = []
    for tenant in reuse.tenants:
        ask = partial(reuse.tenant_curve, tenant, now=now)
        ratios = curve.ratios([*by_workers, *by_budget], ask)
        workers, budgets = tuple(ratios[: len(by_workers)]), tuple(ratios[len(by_workers) :])
        found.append(TenantCurve(tenant, ask([1.0]), workers, budgets))
    return sorted(found, key=lambda one: -one.asked.requests)
