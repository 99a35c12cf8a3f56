"""Curve, advice and scale-in of each pool, as the admin API, the console and findings have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from cachefleet_controlplane.capacity.advice import Advised, advise, size_of, unknown
from cachefleet_controlplane.capacity.advice_records import AdviceRecords
from cachefleet_controlplane.capacity.capacity_report import (
    REQUESTS_NEEDED,
    CapacityReports,
    PoolCapacity,
    TenantCurve,
)
from cachefleet_controlplane.capacity.scale_in import scale_in
from cachefleet_controlplane.workers.views import FleetView
from cachefleet_core.engine.engine_configuration import lacks_prefix_cache
from cachefleet_core.fleet_status.capacity_facts import UNKNOWN, CapacityFacts, ScaleInFacts, TenantCurveFacts
from cachefleet_core.fleet_status.pool_facts import PoolFacts
from cachefleet_core.fleet_status.worker_facts import WorkerFacts


class CapacityAnswers:
    """Answers by the latest reports, made once for each of them; call it for all pools. ``records`` are of what came
    of earlier advice.
    """

    def __init__(self, reports: CapacityReports, view: Callable[[], FleetView], records: AdviceRecords) -> None:
        self._reports = reports
        self._view = view
        self._records = records
        self._of: Sequence[PoolCapacity] | None = None
        self._made: tuple[CapacityFacts, ...] = ()

    def __call__(self) -> tuple[CapacityFacts, ...]:
        """All pools that there are, known or not."""
        reports = self._reports.all()
        if reports is not self._of:
            self._of, self._made = reports, tuple(self._answers(reports))
        return self._made

    def _answers(self, reports: Sequence[PoolCapacity]) -> list[CapacityFacts]:
        view, known = self._view(), {one.measures.key: one for one in reports}
        return [self._answer(pool, known.get(pool.key), view) for pool in view.pools]

    def _answer(self, pool: PoolFacts, one: PoolCapacity | None, view: FleetView) -> CapacityFacts:
        requests = self._reports.requests(pool.key)
        members = [worker for worker in view.workers if worker.pool == pool.key]
        block_size = pool.contract.block_size if pool.contract else 0
        goes, record = scale_in(members, block_size, one.curve if one else None), self._records.of(pool.key)
        changes = record.shown_changes() if record else ()
        if one is None:
            uncached = self._uncached(pool, members)
            advised = Advised(UNKNOWN, uncached) if uncached else unknown(_why(pool, requests))
            return CapacityFacts(
                pool=pool.key,
                verdict=advised.verdict,
                words=advised.words,
                requests=requests,
                changes=changes,
                scale_in=goes,
            )
        fit = record.shown_fit() if record and one.desired else None
        return replace(
            _known(one, advise(one.measures, one.curve, one.desired), goes), changes=changes, desired_fit=fit
        )

    def _uncached(self, pool: PoolFacts, members: Sequence[WorkerFacts]) -> str:
        """Why a pool has no prefix cache; "" where it has one."""
        if any(lacks_prefix_cache(worker.configuration) for worker in members):
            return "no prefix cache: vLLM gives none to its model"
        declared = self._reports.declared().get(pool.key)
        return (
            "" if declared is None or declared.spec.prefix_cache.enabled else "no prefix cache: the pool turns it off"
        )


def _why(pool: PoolFacts, requests: float) -> str:
    if not pool.workers.ready:
        return "no worker is ready"
    if requests < REQUESTS_NEEDED:
        return (
            f"this replica has answered {requests:.0f} requests lately whose blocks are known, "
            f"and a curve takes {REQUESTS_NEEDED:.0f}"
        )
    return "no ready worker reports its load"


def _known(one: PoolCapacity, advised: Advised, goes: ScaleInFacts | None) -> CapacityFacts:
    measures, desired = one.measures, one.desired
    return CapacityFacts(
        pool=measures.key,
        verdict=advised.verdict,
        words=advised.words,
        requests=one.asked.requests,
        served_ratio=one.asked.served_ratio,
        error=one.error,
        sampled=one.sampled,
        outline_age_seconds=one.outline_age,
        outline_error=one.curve.outlined.error if one.curve.outlined else None,
        now=size_of(measures, one.now),
        by_workers=tuple(size_of(measures, point) for point in one.by_workers),
        by_budget=tuple(size_of(measures, point) for point in one.by_budget),
        by_tenant=tuple(map(_tenant, one.tenants)),
        advice=advised.items,
        desired_workers=desired.workers if desired else None,
        desired_reason=desired.reason if desired else "",
        scale_in=goes,
    )


def _tenant(one: TenantCurve) -> TenantCurveFacts:
    return TenantCurveFacts(
        tenant=one.tenant,
        requests=one.asked.requests,
        served_ratio=one.asked.served_ratio,
        by_workers=one.by_workers,
        by_budget=one.by_budget,
    )
