"""Reports of pools: what they rest on, when there are any, and their gauges."""

from dataclasses import replace

import msgspec
import pytest

from cachefleet_controlplane.capacity.capacity_metrics import CapacityCollector
from cachefleet_controlplane.capacity.capacity_report import (
    BUDGETS,
    KEPT_SECONDS,
    MORE_WORKERS,
    REQUESTS_NEEDED,
    CapacityReports,
)
from cachefleet_controlplane.capacity.pool_measures import pool_measures
from cachefleet_controlplane.capacity.pool_reuse import PoolReuses, ReusedPrompt, Window
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.workers.views import FleetView, ServedModel
from cachefleet_core.block_keys import pack_keys
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.report_frames import Capability, State
from cachefleet_core.tenancy import TenantId
from tests.controlplane.fleet_views import REPORT, fleet_view, unknown_worker, worker_status
from tests.controlplane.gateway.harness import pool as declared

KEY = "default/demo"
BOUNDED = (Capability(feature="budget", mode="scheduler"),)


def models() -> list[ServedModel]:
    return [
        ServedModel(
            name="tiny",
            upstream="tiny",
            base="tiny",
            namespace="default",
            pools=(KEY,),
            declared=(declared(),),
            max_model_len=None,
            created=0,
        )
    ]


def asked(reuses: PoolReuses, requests: int, *, blocks: int = 40, now: float = 0.0) -> None:
    """Two prompts by turns, of which a half was served."""
    for number in range(requests):
        keys = [(1 + number % 2) << 32 | block for block in range(blocks)]
        prompt = ReusedPrompt(
            keys=pack_keys(keys),
            block_size=16,
            prompt_tokens=16 * blocks,
            completion_tokens=8,
            servable_blocks=blocks - 1,
            served_tokens=8 * blocks,
            tenant=TenantId("acme"),
        )
        reuses.note(KEY, prompt, now)


def view() -> FleetView:
    return fleet_view(worker_status("demo-0"), worker_status("demo-1"), unknown_worker("demo-2"))


def test_what_a_pools_workers_have_and_do() -> None:
    [measures] = pool_measures(view(), {KEY: declared()}.get)
    assert (measures.workers, measures.budget, measures.total, measures.used, measures.held) == (2, 64, 64, 88, 80)
    assert measures.own == 128, "no more than there are"
    assert measures.duplicated == pytest.approx(0.2)
    assert (measures.prefill_rate, measures.rate_measured) == (1500.0, True)
    assert measures.budget_mib == measures.mib_of(64) == 0, "nothing holds the engines to it"
    assert measures.worker_hour is None


def test_a_budget_that_the_engines_keep_is_what_is_left_idle() -> None:
    spec = declared(prefix_cache="{budgetMiB: 0}")
    bounded = [replace_capabilities(name) for name in ("demo-0", "demo-1")]
    [measures] = pool_measures(fleet_view(*bounded), {KEY: spec}.get)
    assert (measures.budget, measures.own) == (0, 88)


def test_what_a_budget_may_grow_to_leaves_room_for_what_runs_and_for_a_longest_request() -> None:
    [roomy] = pool_measures(fleet_view(replace_capabilities("demo-0", blocks_total=50_000)), {KEY: declared()}.get)
    longest = declared().spec.engine.max_model_len // 16 + 1
    assert roomy.most_budget == 50_000 - max(longest, 50_000 - REPORT.blocks_free)
    idle = replace_capabilities("demo-0", blocks_total=50_000, blocks_free=50_000)
    [idle_pool] = pool_measures(fleet_view(idle), {KEY: declared()}.get)
    assert idle_pool.most_budget == 50_000 - longest
    assert replace(idle_pool, budget_mib=2).mib_of(512) == 512 * 4096 // 2**20


def test_a_workers_devices_have_the_price_of_all_their_hours() -> None:
    spec = declared(pricing="{gpuHour: 1.5}")
    ranks = [worker_status("demo-0", rank=rank) for rank in range(2)]
    [measures] = pool_measures(fleet_view(*ranks), {KEY: spec}.get)
    assert measures.worker_hour == 1.5 * 2 * spec.spec.engine.tensor_parallel_size


def replace_capabilities(name: str, **report: int) -> WorkerFacts:
    return worker_status(name, capabilities=BOUNDED, report=replace_report(**report))


def test_ranks_of_one_worker_are_one() -> None:
    ranks = [worker_status("demo-0", rank=rank) for rank in range(2)]
    [measures] = pool_measures(fleet_view(*ranks), {KEY: declared()}.get)
    assert (measures.workers, measures.total, measures.prefill_rate) == (1, 128, 3000.0)


def test_pools_that_tell_too_little_have_no_report() -> None:
    reuses, now = PoolReuses(), [0.0]
    reports = CapacityReports(reuses, view, models, clock=lambda: now[0])
    assert reports.all() == []
    asked(reuses, int(REQUESTS_NEEDED) - 1)
    now[0] += KEPT_SECONDS
    assert reports.all() == []
    asked(reuses, 2)
    assert reports.all() == [], "as made before"
    now[0] += KEPT_SECONDS
    assert [one.measures.key for one in reports.all()] == [KEY]
    silent = fleet_view(unknown_worker("demo-0"))
    assert CapacityReports(reuses, lambda: silent, models, clock=lambda: 0.0).all() == []


def test_a_report_is_told_by_workers_by_budget_and_by_tenant() -> None:
    reuses = PoolReuses()
    asked(reuses, 200)
    reports = CapacityReports(reuses, view, models, clock=lambda: 1.0)
    one = reports.of(KEY, Window.DAY)
    assert one is not None
    assert [point.workers for point in one.by_workers] == [2 + more for more in MORE_WORKERS if more > -2]
    assert [point.budget_factor for point in one.by_budget] == list(BUDGETS)
    assert one.asked.served_ratio == 0.5
    assert one.now.hit_ratio == next(point.hit_ratio for point in one.by_workers if point.workers == 2)
    [tenant] = one.tenants
    assert (tenant.tenant, tenant.asked.served_ratio) == ("acme", 0.5)
    assert tenant.asked.requests == pytest.approx(200, abs=1)
    recent = reports.of(KEY, Window.RECENT)
    assert recent is not None
    assert tenant.by_workers == pytest.approx([point.hit_ratio for point in recent.by_workers]), "it asked for it all"
    assert tenant.by_budget == pytest.approx([point.hit_ratio for point in recent.by_budget])
    assert reports.of("default/other", Window.DAY) is None


def test_gauges_have_a_bounded_number_of_series() -> None:
    reuses, metrics = PoolReuses(), Metrics()
    asked(reuses, 200)
    metrics.collect_from(CapacityCollector(CapacityReports(reuses, view, models, clock=lambda: 1.0).all))
    found = {
        (sample.labels["workers"], sample.labels["budget"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "cachefleet_pool_hit_ratio_at"
    }
    by_workers = [("-1", "1"), ("+0", "1"), ("+1", "1"), ("+2", "1"), ("+4", "1")]
    assert set(found) == {*by_workers, *(("+0", budget) for budget in ("0.25", "0.5", "2", "4"))}
    assert all(0 <= ratio <= 1 for ratio in found.values())
    assert metrics.registry.get_sample_value("cachefleet_pool_hit_ratio_error", {"pool": KEY}) is not None
    assert metrics.registry.get_sample_value("cachefleet_pool_hit_curve_sampled", {"pool": KEY}) == 1.0


def test_the_measures_are_of_now() -> None:
    busy = replace(view(), workers=(worker_status("demo-0", report=replace_report(blocks_free=0)),))
    [measures] = pool_measures(busy, {KEY: declared()}.get)
    assert (measures.workers, measures.used) == (1, 64)


def replace_report(**changes: int) -> State:
    return msgspec.structs.replace(REPORT, **changes)
