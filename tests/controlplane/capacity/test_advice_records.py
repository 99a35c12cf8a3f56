"""What came of advice, over all pools: looked at by the reports there are, in bounded number, and as metrics."""

import pytest

from cachefleet_controlplane.capacity.advice_records import AdviceRecords
from cachefleet_controlplane.capacity.capacity_answers import CapacityAnswers
from cachefleet_controlplane.capacity.capacity_metrics import AdviceCollector
from cachefleet_controlplane.capacity.capacity_report import CapacityReports
from cachefleet_controlplane.capacity.pool_reuse import PoolReuses
from cachefleet_controlplane.capacity.size_changes import SettlingBounds
from cachefleet_controlplane.metrics import Metrics
from tests.controlplane.capacity.test_capacity_report import KEY, asked, models, view
from tests.controlplane.fleet_views import fleet_view, worker_status

SOON = SettlingBounds(fill_requests=1, fill_seconds=0.0, measured_requests=100, measured_seconds=0.0)


def test_a_change_is_told_by_the_api_and_as_metrics() -> None:
    reuses, now, shown, metrics = PoolReuses(), [0.0], [view()], Metrics()
    served = list(models())
    reports = CapacityReports(reuses, lambda: shown[0], lambda: served, clock=lambda: now[0])
    records = AdviceRecords(reports, bounds=SOON, clock=lambda: 1_800_000_000.0 + now[0])
    metrics.collect_from(AdviceCollector(records))
    asked(reuses, 200)
    for members in (shown[0], *[fleet_view(worker_status("demo-0"))] * 3):
        shown[0] = members
        now[0] += 60
        records.tick()
        asked(reuses, 200, now=now[0])
    [one] = CapacityAnswers(reports, lambda: shown[0], records)()
    [change] = one.changes
    assert (change.before.workers, change.foretold.workers, change.phase) == (2, 1, "judged")
    assert change.hit_ratio == 0.5
    error = metrics.registry.get_sample_value("cachefleet_pool_advice_hit_ratio_error", {"pool": KEY})
    assert error == change.error == pytest.approx(change.foretold.hit_ratio - 0.5)
    load = metrics.registry.get_sample_value("cachefleet_pool_advice_computed_tokens_per_second_error", {"pool": KEY})
    assert load == change.computed_error
    minutes = metrics.registry.get_sample_value("cachefleet_pool_desired_workers_minutes_total", {"pool": KEY})
    assert one.desired_fit is not None
    assert minutes == one.desired_fit.minutes
    assert records.of("default/other") is None
    served.clear()
    now[0] += 60
    records.tick()
    assert records.of(KEY) is None, "the pool was deleted"
    assert metrics.registry.get_sample_value("cachefleet_pool_advice_hit_ratio_error", {"pool": KEY}) is None
