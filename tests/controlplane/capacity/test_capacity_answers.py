"""Answers for each pool: with its curve, or why there is none; made once for each report."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cachefleet_controlplane.capacity.advice_records import AdviceRecords
from cachefleet_controlplane.capacity.capacity_answers import CapacityAnswers
from cachefleet_controlplane.capacity.capacity_report import BUDGETS, KEPT_SECONDS, MORE_WORKERS, CapacityReports
from cachefleet_controlplane.capacity.pool_reuse import PoolReuses
from cachefleet_controlplane.workers.views import FleetView, ServedModel
from cachefleet_core.fleet_status.capacity_facts import UNKNOWN, CapacityFacts
from cachefleet_core.index_contract import Difference
from tests.controlplane.capacity.test_capacity_report import KEY, asked, models, view
from tests.controlplane.fleet_views import fleet_view, unknown_worker, worker_status
from tests.controlplane.gateway.harness import pool as declared


def answer(shown: FleetView, requests: int, served: Sequence[ServedModel] | None = None) -> CapacityFacts:
    reuses = PoolReuses()
    asked(reuses, requests)
    reports = CapacityReports(reuses, lambda: shown, lambda: served or models(), clock=lambda: 1.0)
    [one] = CapacityAnswers(reports, lambda: shown, AdviceRecords(reports))()
    assert one.pool == KEY
    return one


def test_a_pool_whose_requests_are_known_has_its_curve_and_advice() -> None:
    one = answer(view(), 200)
    assert one.now is not None
    assert [size.workers for size in one.by_workers] == [2 + more for more in MORE_WORKERS if more > -2]
    assert [size.budget_factor for size in one.by_budget] == list(BUDGETS)
    assert one.requests == pytest.approx(200, abs=1)
    assert (one.served_ratio, one.sampled) == (0.5, 1.0)
    assert one.words
    assert one.desired_workers is not None
    assert (one.scale_in and one.scale_in.worker) == "demo-0"
    [tenant] = one.by_tenant
    assert (tenant.tenant, tenant.served_ratio, len(tenant.by_budget)) == ("acme", 0.5, len(one.by_budget))
    assert len(tenant.by_workers) == len(one.by_workers)


@pytest.mark.parametrize(
    ("shown", "requests", "why"),
    [
        (view(), 49, "this replica has answered 49 requests lately whose blocks are known, and a curve takes 50"),
        (fleet_view(unknown_worker("demo-0", ready=False)), 200, "no worker is ready"),
        (fleet_view(unknown_worker("demo-0")), 200, "no ready worker reports its load"),
    ],
)
def test_why_nothing_is_known(shown: FleetView, requests: int, why: str) -> None:
    one = answer(shown, requests)
    assert (one.verdict, one.words, one.now, one.advice) == (UNKNOWN, f"not known yet: {why}", None, ())


def test_a_pool_whose_model_can_have_no_prefix_cache_says_so() -> None:
    uncached = (Difference("enable_prefix_caching", "true", "false"),)
    one = answer(fleet_view(worker_status("demo-0", configuration=uncached)), 0)
    assert (one.verdict, one.words) == (UNKNOWN, "no prefix cache: vLLM gives none to its model")


def test_a_pool_whose_prefix_cache_is_off_says_so() -> None:
    off = declared(prefix_cache="{enabled: false}")
    one = answer(fleet_view(worker_status("demo-0")), 0, [replace(one, declared=(off,)) for one in models()])
    assert one.words == "no prefix cache: the pool turns it off"


def test_an_answer_is_made_once_for_each_report() -> None:
    reuses, now, shown = PoolReuses(), [0.0], [view()]
    asked(reuses, 200)
    reports = CapacityReports(reuses, lambda: shown[0], models, clock=lambda: now[0])
    answers = CapacityAnswers(reports, lambda: shown[0], AdviceRecords(reports))
    first = answers()
    shown[0] = replace(fleet_view(worker_status("demo-7")))
    assert answers() is first
    now[0] += KEPT_SECONDS
    assert answers()[0].scale_in != first[0].scale_in
