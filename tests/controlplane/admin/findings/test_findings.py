"""What is told as wrong, with the words for it, and that each finding's page has its anchor."""

import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from cachefleet_controlplane.admin.findings import pool_findings, service_findings, worker_findings
from cachefleet_controlplane.admin.findings.finding import Fault, Finding, Severity, operations
from cachefleet_controlplane.admin.findings.findings import findings
from cachefleet_controlplane.admin.findings.service_findings import ServiceState
from cachefleet_controlplane.gateway.engine_deaths.engine_deaths import FatalRequest, Subject
from cachefleet_controlplane.store.access_marker import ClosedReason
from cachefleet_controlplane.store.tenant_records import KeyRecord
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_controlplane.workers.views import FleetView, IndexStatus
from cachefleet_core.fleet_status.capacity_facts import (
    FEWER_WORKERS,
    MORE_WORKERS,
    NOTHING,
    WORTH,
    AdviceFacts,
    CapacityFacts,
    ScaleInFacts,
    SizeFacts,
)
from cachefleet_core.fleet_status.pool_facts import AdapterConflict, AliasConflict, WorkerCounts
from cachefleet_core.index_contract import Difference
from cachefleet_core.pool.adapter_reports import AdapterProblem, AdapterReport
from cachefleet_core.report_frames import Phase
from cachefleet_core.tenancy import TenantId
from cachefleet_core.warmth import WarmProblem, Warmth
from cachefleet_operator.reasons import Reason
from tests.controlplane.admin.conftest import Still
from tests.controlplane.fleet_views import DIFFERENT, INDEX, REPORT, fleet_view, measured, unknown_worker, worker_status

KEY = KeyRecord(id="1", tenant=TenantId("acme"), hash="h", hint="cf-abcdef", created=1.0)
WELL = ServiceState(directory=Directory(keys={KEY.hash: KEY}, required=True))
EMPTY = IndexStatus(keys=0, held=0, bytes=0, refused_frames=0, shed_frames=0, excess_claims=0)
ROOT = Path(__file__).parents[4]
UNCACHED = Difference("enable_prefix_caching", "true", "false")
NO_FILE = AdapterProblem(name="sql", detail="no file at /x")


def view(*workers: Any, index: IndexStatus = EMPTY, **of_pool: Any) -> FleetView:
    seen = fleet_view(*workers)
    return replace(seen, pools=(msgspec.structs.replace(seen.pools[0], **of_pool),), index=index)


def told(seen: FleetView, state: ServiceState = WELL) -> dict[str, Finding]:
    return {one.reason: one for one in findings(seen, state)}


def test_a_healthy_fleet_has_none() -> None:
    assert not told(view(worker_status("a")))


@pytest.mark.parametrize(
    ("conflict", "words"),
    [
        (AdapterConflict("sql", "b/other", nameless=False), "is that of pool b/other: it is asked for as default/sql"),
        (AdapterConflict("sql", "b/other", nameless=True), "is that of pool b/other: nobody can ask for it"),
        (
            AdapterConflict("sql", "", nameless=False),
            "may not be had by this namespace: it is asked for",
        ),
    ],
)
def test_a_clash_of_an_adapters_name_is_told_with_the_name_that_is_left(conflict: AdapterConflict, words: str) -> None:
    assert words in told(view(worker_status("a"), adapter_conflicts=(conflict,)))["AdapterNameConflict"].message


@pytest.mark.parametrize(
    ("conflict", "words"),
    [
        (AliasConflict("gpt", "b/other"), "the alias gpt is that of pool b/other: it means tiny as default/gpt alone"),
        (AliasConflict("gpt", nameless=True), "may not be had by this namespace: nothing means tiny by it"),
    ],
)
def test_a_clash_of_an_alias_is_told_with_the_name_that_is_left(conflict: AliasConflict, words: str) -> None:
    assert words in told(view(worker_status("a"), alias_conflicts=(conflict,)))["AliasConflict"].message


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ({"suspended": "stuck"}, "EngineStuck", "nothing moves: it gets no others"),
        ({"key_refused": True}, "KeysRefused", "gateway's key"),
        ({"backing_off": True}, "BackingOff", "http://127.0.0.1:9001"),
        ({"vouched": False}, "AgentAbsent", "no requests"),
        ({"connected": False, "stale": True}, "AgentDisconnected", "0 s ago"),
        ({"stale": True, "stream": "awaiting"}, "ReportsStale", "stream awaiting"),
        ({"excluded": True, "differences": DIFFERENT}, "ContractMismatch", "weights is 'other', the pool's is 'tiny'"),
        ({"configuration": (Difference("max_model_len", "10", "20"),)}, "EngineDiffers", "max_model_len is '20'"),
        ({"configuration": (UNCACHED,)}, "NoPrefixCache", "vLLM gives none to its model"),
        ({"configuration": (UNCACHED, Difference("dtype", "a", "b"))}, "EngineDiffers", "dtype is 'b'"),
        ({"not_indexed": "group 3"}, "NotUnderstood", "group 3"),
        ({"blind": True}, "ServesUnindexed", "the index holds nothing"),
        ({"indexed": False}, "IndexFull", "did not fit"),
        ({"trust": 0.25}, "ClaimsNotServed", "25% of that"),
        ({"adapters": AdapterReport(problems=(NO_FILE,))}, "AdapterNotLoaded", "requests there: no file at /x"),
    ],
)
def test_a_fault_of_a_worker(fault: dict[str, Any], reason: str, words: str) -> None:
    (found,) = told(view(worker_status("a"), worker_status("b", **fault))).values()
    assert found.reason == reason
    assert found.subject == "worker default/demo/b#0"
    assert found.severity is Severity.WARNING
    assert words in found.message


def test_an_engine_that_somebody_suspended_is_told_and_is_no_fault() -> None:
    found = told(view(worker_status("a"), worker_status("b", suspended="updating_weights")))["EngineSuspended"]
    assert (found.severity, found.subject) == (Severity.INFO, "worker default/demo/b#0")
    assert "its engine is updating weights, so it gets no requests" in found.message


def test_a_worker_that_failed_says_why() -> None:
    failed = worker_status("b", report=_report(phase=Phase.FAILED, reason="engine_corrupted"))
    assert told(view(worker_status("a"), failed))["WorkerFailed"].message.endswith("failed: engine_corrupted")


def test_warm_prefixes_that_are_not_cached_are_told_one_by_one() -> None:
    problems = (
        WarmProblem(name="long", kind="too_long", tokens=900, limit=512, detail="engine.maxModelLen"),
        WarmProblem(name="odd", kind="refused", detail="roles"),
        WarmProblem(name="late", kind="failing", attempts=4, detail="timeout"),
    )
    seen = told(view(worker_status("a", warmth=Warmth(done=0, total=3, problems=problems))))
    assert "takes 900 tokens, the limit is 512 by engine.maxModelLen" in seen["WarmPrefixTooLong"].message
    assert "odd is refused: roles" in seen["WarmPrefixRefused"].message
    assert "late failed 4 times" in seen["WarmPrefixFailing"].message


def test_a_worker_that_is_not_listed_or_still_starts_is_no_fault() -> None:
    leaving, starting = unknown_worker("b", listed=False, ready=False), unknown_worker("c", ready=False)
    assert set(told(view(worker_status("a"), leaving, starting))) == {"SomeReady"}


@pytest.mark.parametrize(
    ("fault", "reason", "severity"),
    [
        ({"workers": WorkerCounts()}, "NoWorkers", Severity.CRITICAL),
        ({"workers": WorkerCounts(), "replicas": 0}, "NoWorkersWanted", Severity.INFO),
        ({"workers": WorkerCounts(total=2)}, "NoneReady", Severity.CRITICAL),
        ({"workers": WorkerCounts(total=2, ready=1)}, "SomeReady", Severity.INFO),
        ({"admitted": False}, "NotAdmitted", Severity.WARNING),
    ],
)
def test_a_fault_of_a_pool(fault: dict[str, Any], reason: str, severity: Severity) -> None:
    (found,) = told(view(worker_status("a"), **fault)).values()
    assert (found.reason, found.subject, found.severity) == (reason, "pool default/demo", severity)


def test_a_hit_ratio_below_its_objective_counts_once_enough_was_looked_up() -> None:
    low = {"queried": 1000, "hit": 100}
    found = told(view(worker_status("a"), hit_ratio=measured(**low)))["BelowObjective"]
    assert found.message == "of 1,000 prompt tokens in 600 s 10.0% came from cache, the objective is 60.0%"
    assert not told(view(worker_status("a"), hit_ratio=measured(min_tokens=1001, **low)))
    assert not told(view(worker_status("a"), hit_ratio=measured(**low, answered=900, served=600)))
    both = told(view(worker_status("a"), hit_ratio=measured(**low, answered=900, served=450)))["BelowObjective"]
    assert both.message.startswith("of 900 prompt tokens in 600 s 50.0% came from cache")
    assert both.message.endswith("; the engines' own counters say 10.0%")
    assert not told(view(worker_status("a"), hit_ratio=measured(None, **low)))
    assert not told(view(worker_status("a"), hit_ratio=measured()))


def capacity(action: str, *, desired: int, **changes: Any) -> CapacityFacts:
    then = SizeFacts(workers=desired)
    one = AdviceFacts(action=action, worth=True, words="words of it", size=then)
    given: dict[str, Any] = {"verdict": WORTH, "advice": (one,), "desired_workers": desired, "error": 0.012}
    return CapacityFacts(pool="default/demo", now=SizeFacts(workers=2), **given | changes)


def advised(seen: FleetView, one: CapacityFacts) -> list[Finding]:
    return [each for each in findings(seen, WELL, [one]) if each.severity is Severity.INFO]


def test_what_a_hit_curve_advises_is_told_where_load_does_not_fit_or_an_objective_is_missed() -> None:
    well, missed = (view(worker_status("a"), hit_ratio=measured(queried=1000, hit=hits)) for hits in (700, 100))
    [found] = advised(well, capacity(MORE_WORKERS, desired=3))
    assert (found.subject, found.reason) == ("pool default/demo", "CapacityAdvice")
    assert found.message == "words of it (the curve's error: +1.2 points)"
    assert [one.reason for one in advised(missed, capacity(MORE_WORKERS, desired=2))] == ["CapacityAdvice"]
    assert not advised(well, capacity(MORE_WORKERS, desired=2)), "it can wait"
    assert not advised(missed, capacity(MORE_WORKERS, desired=3, verdict=NOTHING))
    assert not advised(missed, CapacityFacts(pool="default/demo"))


def test_a_worker_too_many_is_told_with_the_one_that_would_go_and_what_it_would_take_along() -> None:
    goes = ScaleInFacts(worker="a", words="a goes first: its cache is worth least")
    [found] = advised(view(worker_status("a")), capacity(FEWER_WORKERS, desired=1, scale_in=goes))
    assert (found.reason, found.docs) == ("FewerWorkersEnough", operations("autoscalers"))
    assert found.message.startswith("words of it; a goes first: its cache is worth least (the curve's error")


@pytest.mark.parametrize(
    ("state", "subject", "reason"),
    [
        ({"pools_known": False}, "pools", "PoolsUnknown"),
        ({"pools_problem": "pools.yaml: gone"}, "pools", "PoolsOutOfDate"),
        ({"unknown_control_planes": "c (a/b)"}, "pools", "ControlPlaneUnknown"),
        ({"unread_pools": ("a/b",)}, "pool a/b", "Invalid"),
        (
            {"fatal_requests": (FatalRequest(Subject("qwen", "acme", "d1"), ("ns/p/a", "ns/p/b"), 60),)},
            "request d1",
            "FatalRequest",
        ),
        ({"store_problem": "disk full"}, "store", "StoreFails"),
        ({"private_store": True}, "store", "PrivateStore"),
        ({"directory": Directory(read=False, closed=ClosedReason.UNREAD)}, "tenants", "TenantsUnread"),
        ({"directory": Directory(closed=ClosedReason.LOST)}, "tenants", "KeysLost"),
        ({"tenants_problem": "locked"}, "tenants", "TenantsOutOfDate"),
        ({"directory": Directory()}, "tenants", "KeysNotRequired"),
        ({"directory": Directory(closed=ClosedReason.KEYED)}, "tenants", "NoKeys"),
        ({"directory": Directory(required=True)}, "tenants", "NoKeys"),
        ({"leaving": True}, "replica", "ShuttingDown"),
    ],
)
def test_a_fault_of_the_control_plane(state: dict[str, Any], subject: str, reason: str) -> None:
    (found,) = told(view(worker_status("a")), replace(WELL, **state)).values()
    assert (found.subject, found.reason) == (subject, reason)


def test_what_the_index_refused_is_told_with_its_count() -> None:
    seen = told(view(worker_status("a"), index=INDEX))
    assert {name: one.message.split()[0] for name, one in seen.items()} == {
        "FramesShed": "2",
        "ExcessClaims": "1",
        "FramesRefused": "3",
    }


def test_the_most_severe_come_first_and_then_by_subject() -> None:
    seen = view(worker_status("b", blind=True), worker_status("a", blind=True), workers=WorkerCounts(total=2))
    found = findings(seen, replace(WELL, directory=Directory()))
    assert [(one.severity, one.subject) for one in found] == [
        ("critical", "pool default/demo"),
        ("warning", "worker default/demo/a#0"),
        ("warning", "worker default/demo/b#0"),
        ("info", "tenants"),
    ]


def faults() -> list[Fault[Any]]:
    groups: tuple[tuple[Fault[Any], ...], ...] = (
        *pool_findings._GROUPS,
        *worker_findings._GROUPS,
        *chain.from_iterable(service_findings._SERVICE.values()),
        *service_findings._UNREAD_POOL,
        *service_findings._FATAL_REQUEST,
        *service_findings._INDEX,
    )
    return list(chain.from_iterable(groups))


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "docs", sorted({fault.docs for fault in faults()} | {operations("degraded-and-ready"), operations("autoscalers")})
)
def test_the_docs_have_the_place_that_a_finding_names(docs: str) -> None:
    page, _, anchor = docs.partition("#")
    assert anchor in anchors(ROOT / page)


def test_reasons_are_told_apart() -> None:
    reasons = [fault.reason for fault in faults()]
    assert len(set(reasons)) == len(reasons)


def test_where_a_condition_says_the_same_the_reason_is_its() -> None:
    ours = {fault.reason for fault in faults()} | {"WarmPrefixTooLong", "WarmPrefixRefused", "WarmPrefixFailing"}
    same = ours & {str(reason) for reason in Reason}
    assert len(same) >= 14


async def test_the_route_tells_them(client: httpx.AsyncClient, fleet: Still) -> None:
    fleet.shown = view(worker_status("a"), workers=WorkerCounts(total=1))
    items = (await client.get("/findings")).json()["items"]
    assert [one["reason"] for one in items] == ["NoneReady", "KeysNotRequired"]
    assert items[0]["message"].startswith("its one worker is not ready, so requests for ")
    assert set(items[0]) == {"severity", "subject", "reason", "message", "action", "docs"}


def _report(**changes: Any) -> Any:
    return type(REPORT)(**{name: getattr(REPORT, name) for name in REPORT.__struct_fields__} | changes)
