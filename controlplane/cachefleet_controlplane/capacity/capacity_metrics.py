"""The hit curves of pools as Prometheus gauges, read at each scrape.

Label ``workers`` is how many more or fewer than there are ("+0", "+1", "-1"), ``budget`` a factor of today's ("1"), so
that there are as many series of a pool as ``capacity_report`` has points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cachefleet_controlplane.capacity.advice_records import AdviceRecords
from cachefleet_controlplane.capacity.capacity_report import PoolCapacity
from cachefleet_controlplane.capacity.desired_fit import REASONS
from cachefleet_controlplane.capacity.hit_curve import CurvePoint

_POINT: Final = ("pool", "workers", "budget")
_RATIO: Final = "Prompt tokens from cache at another number of workers, or budget"
_COMPUTED: Final = "Prompt tokens that would be computed then"
_ERROR: Final = "Hit ratio that is predicted for what there is, less the one served"
_DESIRED: Final = "Workers that the pool should have, with what asks for so many"
_SAMPLED: Final = "Share of blocks that the curve is made of"
_OUTLINED: Final = "Hit ratio of what there is by the outline that corrects the curve, less the one served"

_OF: Final = ("pool",)
_CHANGE: Final = "Hit ratio that was foretold for the pool's size at its last judged change, less the one that came"
_LOAD: Final = "Computed tokens a second foretold for the pool's size at its last judged change, less those that came"
_JUDGED: Final = "Minutes in which the pool had as many workers as were desired, and was judged"
_MISSED: Final = "Minutes of these in which the load did not fit, by reason; one may have several"


class CapacityCollector(Collector):
    """Calls ``reports`` once per scrape."""

    def __init__(self, reports: Callable[[], Iterable[PoolCapacity]]) -> None:
        self._reports = reports

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read the fleet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All gauges of one time."""
        ratios = GaugeMetricFamily("cachefleet_pool_hit_ratio_at", _RATIO, labels=_POINT)
        computed = GaugeMetricFamily("cachefleet_pool_computed_tokens_per_second_at", _COMPUTED, labels=_POINT)
        errors = GaugeMetricFamily("cachefleet_pool_hit_ratio_error", _ERROR, labels=("pool",))
        desired = GaugeMetricFamily("cachefleet_pool_desired_workers", _DESIRED, labels=("pool", "reason"))
        sampled = GaugeMetricFamily("cachefleet_pool_hit_curve_sampled", _SAMPLED, labels=("pool",))
        outlined = GaugeMetricFamily("cachefleet_pool_outline_error", _OUTLINED, labels=("pool",))
        for one in self._reports():
            for labels, point in _points(one):
                ratios.add_metric(labels, point.hit_ratio)
                computed.add_metric(labels, point.computed_tokens_per_second)
            errors.add_metric((one.measures.key,), one.error)
            sampled.add_metric((one.measures.key,), one.sampled)
            if one.curve.outlined is not None:
                outlined.add_metric((one.measures.key,), one.curve.outlined.error)
            if one.desired is not None:
                desired.add_metric((one.measures.key, one.desired.reason), one.desired.workers)
        yield from (ratios, computed, desired, errors, sampled, outlined)


def _points(one: PoolCapacity) -> Iterator[tuple[tuple[str, str, str], CurvePoint]]:
    pool, today = one.measures.key, one.measures.workers
    for point in one.by_workers:
        yield (pool, f"{point.workers - today:+d}", "1"), point
    for point in one.by_budget:
        if point.budget_factor != 1.0:
            yield (pool, "+0", f"{point.budget_factor:g}"), point


class AdviceCollector(Collector):
    """What came of advice; reads ``records`` once per scrape."""

    def __init__(self, records: AdviceRecords) -> None:
        self._records = records

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read the fleet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of one time."""
        change = GaugeMetricFamily("cachefleet_pool_advice_hit_ratio_error", _CHANGE, labels=_OF)
        load = GaugeMetricFamily("cachefleet_pool_advice_computed_tokens_per_second_error", _LOAD, labels=_OF)
        judged = CounterMetricFamily("cachefleet_pool_desired_workers_minutes", _JUDGED, labels=_OF)
        missed = CounterMetricFamily("cachefleet_pool_desired_workers_missed_minutes", _MISSED, labels=(*_OF, "reason"))
        for pool, record in self._records.all():
            if (last := record.judged) is not None:
                change.add_metric((pool,), last.error or 0.0)
                load.add_metric((pool,), last.computed_error or 0.0)
            judged.add_metric((pool,), record.fit.total.minutes)
            for reason in REASONS:
                missed.add_metric((pool, reason.value), record.fit.total.misses[reason])
        yield from (change, load, judged, missed)
