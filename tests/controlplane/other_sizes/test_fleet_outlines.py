"""Recorded requests of a live pool, played through fleets of other sizes."""

import asyncio
from typing import Any

import pytest

from cachefleet_controlplane.capacity.advice_records import AdviceRecords
from cachefleet_controlplane.capacity.capacity_answers import CapacityAnswers
from cachefleet_controlplane.capacity.capacity_metrics import CapacityCollector
from cachefleet_controlplane.capacity.capacity_report import KEPT_SECONDS, CapacityReports
from cachefleet_controlplane.capacity.pool_reuse import PoolReuses, ReusedPrompt
from cachefleet_controlplane.history.recorded_requests import RecordedRequest, RecordedRequests
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.other_sizes import fleet_outlines
from cachefleet_controlplane.other_sizes.fleet_outlines import EVERY_SECONDS, FleetOutlines
from cachefleet_core.block_keys import pack_keys
from cachefleet_core.tenancy import TenantId
from tests.controlplane.fleets import LiveFleet, fleet_of

KEY = "default/demo"
LOAD: dict[str, Any] = {"blocks_total": 101, "blocks_free": 100, "blocks_idle": 90, "prefill_tokens_per_second": 4000.0}


class Told:
    """A pool of two workers of 100 blocks, and ``talks`` conversations of 40 blocks that take turns."""

    def __init__(self, *, talks: int = 6, requests: int = 300, served: float = 0.0) -> None:
        self.fleet: LiveFleet = fleet_of("demo-0", "demo-1")
        for name in ("demo-0", "demo-1"):
            self.fleet.report(name, **LOAD)
        self.recorded, self.reuses, self.now = RecordedRequests(1 << 22), PoolReuses(), [0.0]
        self.reports = CapacityReports(self.reuses, self.fleet.view, self.fleet.models, clock=lambda: self.now[0])
        self.outlines = FleetOutlines(self.fleet, self.recorded, self.reports, clock=lambda: self.now[0])
        for number in range(requests):
            self._ask(number, pack_keys([(number % talks) << 32 | block for block in range(1, 41)]), int(641 * served))

    def _ask(self, number: int, keys: bytes, served: int) -> None:
        self.recorded.add(RecordedRequest(float(number), KEY, keys, 641, served, 1))
        prompt = ReusedPrompt(
            keys=keys,
            block_size=16,
            prompt_tokens=641,
            completion_tokens=1,
            servable_blocks=40,
            served_tokens=served,
            tenant=TenantId("acme"),
        )
        self.reuses.note(KEY, prompt, 0.0)


async def test_a_pools_requests_are_played_through_its_sizes() -> None:
    told = Told()
    await told.outlines.tick()
    made = told.reports.outlined[KEY]
    assert (made.workers, made.requests, made.served) == (2, 150, 0.0)
    ratios = dict(made.by_workers)
    assert list(ratios) == [1, 2, 3, 4, 6]
    assert ratios[1] < ratios[2] < 0.6, "each holds two conversations, and three share it"
    assert ratios[3] == ratios[6] > 0.9, "each of three has its two conversations"
    assert made.by_budget == [(1.0, ratios[2])], "nothing bounds what is idle"


async def test_it_corrects_the_curve_says_so_and_is_made_anew_in_time_and_for_another_size() -> None:
    told, metrics = Told(served=0.47), Metrics()
    answers = CapacityAnswers(told.reports, told.fleet.view, AdviceRecords(told.reports))
    metrics.collect_from(CapacityCollector(told.reports.all))
    gauge = "cachefleet_pool_outline_error"
    [plain] = answers()
    assert plain.outline_age_seconds is None
    assert metrics.registry.get_sample_value(gauge, {"pool": KEY}) is None
    await told.outlines.tick()
    told.now[0] += KEPT_SECONDS
    [one] = answers()
    first = told.reports.outlined[KEY]
    assert (one.outline_age_seconds, one.outline_error) == (KEPT_SECONDS, first.error)
    assert metrics.registry.get_sample_value(gauge, {"pool": KEY}) == first.error
    three = next(size.hit_ratio for size in one.by_workers if size.workers == 3)
    assert one.now is not None
    assert three - one.now.hit_ratio == pytest.approx(dict(first.by_workers)[3] - first.today, abs=1e-6)
    await told.outlines.tick()
    assert told.reports.outlined[KEY] is first
    told.now[0] += EVERY_SECONDS
    await told.outlines.tick()
    assert told.reports.outlined[KEY].made_at > first.made_at


@pytest.mark.parametrize("requests", [60, fleet_outlines.LEAST_RECORDS - 1])
async def test_few_requests_are_not_played(requests: int) -> None:
    told = Told(requests=requests)
    await told.outlines.tick()
    assert told.reports.outlined == {}


async def test_one_that_takes_too_long_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(requests=2000)
    await told.outlines.tick()
    assert KEY in told.reports.outlined
    monkeypatch.setattr(fleet_outlines, "SECONDS", 0.0)
    told.now[0] += EVERY_SECONDS
    await told.outlines.tick()
    assert told.reports.outlined == {}


async def test_it_is_a_task_that_goes_on() -> None:
    told, waited = Told(requests=0), asyncio.Queue[float]()

    async def sleep(seconds: float) -> None:
        await waited.put(seconds)
        await asyncio.sleep(0)

    outlines = FleetOutlines(told.fleet, told.recorded, told.reports, sleep=sleep)
    task = asyncio.create_task(outlines.run())
    assert [await waited.get(), await waited.get()] == [fleet_outlines.TICK_SECONDS] * 2
    task.cancel()
