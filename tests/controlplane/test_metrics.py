"""Every event counts, names and labels keep to the rules, and gauges follow the fleet."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cachefleet_controlplane.exposition import exposition
from cachefleet_controlplane.fleet.fleet_metrics import FleetCollector
from cachefleet_controlplane.metrics import MAX_NAMES, TASKS, Metrics
from tests.controlplane.fleet_views import fleet_view, unknown_worker, worker_status
from tests.controlplane.waiting import value

WORKER = {"pool": "default/demo", "worker": "demo-0", "rank": "0"}
EVENTS: list[tuple[str, dict[str, Any], str, dict[str, str]]] = [
    (
        "request",
        {"model": "m", "endpoint": "models", "status": 404},
        "requests_total",
        {"model": "m", "endpoint": "models", "status_class": "4xx"},
    ),
    ("request_started", {}, "requests_in_flight", {}),
    (
        "decision",
        {"policy": "p", "verdict": "route", "knowledge": "exact"},
        "decisions_total",
        {"policy": "p", "verdict": "route", "knowledge": "exact"},
    ),
    (
        "decision",
        {"policy": "p", "verdict": "reject", "knowledge": "load", "reason": "no_ready_worker"},
        "refusals_total",
        {"verdict": "reject", "reason": "no_ready_worker"},
    ),
    ("admission_refusal", {"reason": "no_room"}, "admission_refusals_total", {"reason": "no_room"}),
    ("queue", {"requests": 1}, "queue_requests", {}),
    ("waited", {"outcome": "served", "seconds": 0.1}, "queue_wait_seconds_count", {"outcome": "served"}),
    ("cold_start", {"outcome": "served", "seconds": 9}, "cold_start_seconds_count", {"outcome": "served"}),
    ("tokens", {"model": "m", "prompt": 1, "predicted": 2, "cached": 3}, "prompt_tokens_total", {"model": "m"}),
    (
        "lost_tokens",
        {"pool": "ns/p", "cause": "evicted", "tokens": 1},
        "lost_tokens_total",
        {"pool": "ns/p", "cause": "evicted"},
    ),
    (
        "first_seen_tokens",
        {"pool": "ns/p", "cause": "time", "tokens": 1},
        "first_seen_tokens_total",
        {"pool": "ns/p", "cause": "time"},
    ),
    ("shortfall", {"cause": "evicted", "tokens": 1}, "prediction_shortfall_tokens_total", {"cause": "evicted"}),
    ("surplus", {"cause": "later", "tokens": 1}, "prediction_surplus_tokens_total", {"cause": "later"}),
    (
        "prompt_served",
        {"pool": "ns/p", "prompt": 1, "served": 1},
        "pool_served_tokens_total",
        {"pool": "ns/p"},
    ),
    ("shortfall", {"cause": "evicted", "tokens": 9}, "prediction_shortfalls_total", {"cause": "evicted"}),
    ("first_token", {"model": "m", "seconds": 0.1}, "time_to_first_token_seconds_count", {"model": "m"}),
    ("gateway_added", {"seconds": 0.1}, "gateway_added_seconds_count", {}),
    ("render", {"rung": "render", "seconds": 0.1}, "render_seconds_count", {"rung": "render"}),
    ("attempt_retry", {"reason": "connect"}, "attempt_retries_total", {"reason": "connect"}),
    (
        "passed_on",
        {"control_plane": "b", "outcome": "answered"},
        "passed_requests_total",
        {"control_plane": "b", "outcome": "answered"},
    ),
    ("client_gone", {}, "client_disconnects_total", {}),
    ("reports_connected", {}, "report_connections", {}),
    ("frame", {"kind": "delta", "size": 9}, "report_frames_total", {"type": "delta"}),
    ("malformed", {"reason": "frame"}, "report_frames_malformed_total", {"reason": "frame"}),
    ("report_rejected", {"reason": "unauthorized"}, "report_rejections_total", {"reason": "unauthorized"}),
    ("gate_refusal", {}, "gate_refusals_total", {}),
    ("engine_death", {}, "engine_deaths_total", {}),
    ("answer_stopped", {}, "answers_stopped_total", {}),
    ("fatal_request", {"outcome": "found"}, "fatal_requests_total", {"outcome": "found"}),
    ("prefill_attempt", {"outcome": "prefilled"}, "prefill_attempts_total", {"outcome": "prefilled"}),
    ("divergence", {}, "report_divergence_total", {}),
    ("resync", {"reason": "gap"}, "report_resyncs_total", {"reason": "gap"}),
    ("epoch", {}, "report_epochs_total", {}),
    ("store_written", {"records": 1}, "store_records_total", {}),
    ("store_dropped", {}, "store_dropped_total", {}),
    ("store_error", {"kind": "full"}, "store_errors_total", {"kind": "full"}),
    ("store_up", {"up": True}, "store_up", {}),
    ("keys_lost", {"lost": True}, "api_keys_lost", {}),
    ("revocations_waiting", {"revocations": 1}, "revocations_waiting", {}),
    ("usage_dropped", {}, "usage_dropped_total", {}),
    ("audit_dropped", {}, "audit_dropped_total", {}),
    ("trace_spans", {"outcome": "dropped", "spans": 1}, "trace_spans_total", {"outcome": "dropped"}),
    ("pools_updated", {}, "pool_source_updates_total", {}),
    ("pool_source_error", {"kind": "gone"}, "pool_source_errors_total", {"kind": "gone"}),
    ("auth", {"check": "admin", "outcome": "allowed"}, "auth_checks_total", {"check": "admin", "outcome": "allowed"}),
    ("task_error", {"task": "t"}, "task_errors_total", {"task": "t"}),
]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.mark.parametrize(("event", "arguments", "series", "labels"), EVENTS)
@pytest.mark.requirement("A23")
def test_an_event_counts_one(
    metrics: Metrics, event: str, arguments: dict[str, Any], series: str, labels: dict[str, str]
) -> None:
    getattr(metrics, event)(**arguments)
    assert value(metrics, series, **labels) == 1


def test_every_event_is_tested() -> None:
    methods = {name for name, _ in inspect.getmembers(Metrics, inspect.isfunction) if not name.startswith("_")}
    undone = {"request_ended", "reports_disconnected", "collect_from"}
    assert methods - undone == {event for event, *_ in EVENTS}


def test_gauges_go_down_again(metrics: Metrics) -> None:
    metrics.request_started()
    metrics.request_ended()
    metrics.reports_connected()
    metrics.reports_disconnected()
    metrics.store_up(up=False)
    assert [value(metrics, name) for name in ("requests_in_flight", "report_connections", "store_up")] == [0, 0, 0]


def test_tokens_that_were_not_told_are_not_counted(metrics: Metrics) -> None:
    metrics.tokens(model="m", prompt=10, predicted=5, cached=None)
    metrics.tokens(model="m", prompt=10, predicted=5, cached=4)
    for name, told in (("prompt", 10), ("predicted", 5), ("cached", 4)):
        assert value(metrics, f"{name}_tokens_total", model="m") == told


def test_models_as_labels_are_bounded(metrics: Metrics) -> None:
    for number in range(MAX_NAMES + 10):
        metrics.first_token(model=f"m{number}", seconds=1)
    metrics.first_token(model="m0", seconds=1)
    assert value(metrics, "time_to_first_token_seconds_count", model="other") == 10
    assert value(metrics, "time_to_first_token_seconds_count", model="m0") == 2


def test_pools_as_labels_of_counters_are_bounded(metrics: Metrics) -> None:
    for number in range(MAX_NAMES + 10):
        metrics.lost_tokens(pool=f"ns/p{number}", cause="evicted", tokens=2)
    metrics.lost_tokens(pool="ns/p0", cause="evicted", tokens=2)
    assert value(metrics, "lost_tokens_total", pool="other", cause="evicted") == 20
    assert value(metrics, "lost_tokens_total", pool="ns/p0", cause="evicted") == 4


def test_two_control_planes_in_one_process_do_not_share(metrics: Metrics) -> None:
    metrics.client_gone()
    assert value(Metrics(), "client_disconnects_total") == 0


def test_gauges_of_pool_and_worker(metrics: Metrics) -> None:
    view = [fleet_view(worker_status("demo-0"), unknown_worker("demo-1"))]
    metrics.collect_from(FleetCollector(lambda: view[0]))
    assert value(metrics, "pool_hit_ratio", pool="default/demo") == 0.7
    assert value(metrics, "pool_ready_workers", pool="default/demo") == 2
    assert value(metrics, "worker_held_blocks", **WORKER) == 40
    assert value(metrics, "worker_running_requests", **WORKER) == 2
    assert value(metrics, "worker_prefix_hit_tokens_total", **WORKER) == 700
    sizes = [value(metrics, f"index_{name}") for name in ("keys", "held_blocks", "bytes")]
    assert sizes == [40, 50, 4000]
    assert [value(metrics, f"index_{name}_frames_total") for name in ("refused", "shed")] == [3, 2]
    assert value(metrics, "worker_indexed", **WORKER) == 1
    silent = WORKER | {"worker": "demo-1"}
    assert metrics.registry.get_sample_value("cachefleet_worker_running_requests", silent) is None
    assert metrics.registry.get_sample_value("cachefleet_worker_report_age_seconds", silent) is None
    assert value(metrics, "worker_stale", **silent) == 1
    view[0] = fleet_view()
    assert metrics.registry.get_sample_value("cachefleet_worker_held_blocks", WORKER) is None


def test_a_ratio_nobody_knows_has_no_sample(metrics: Metrics) -> None:
    metrics.collect_from(FleetCollector(lambda: fleet_view(queried=0, hits=0)))
    assert metrics.registry.get_sample_value("cachefleet_pool_hit_ratio", {"pool": "default/demo"}) is None


def test_what_is_exposed_can_be_read_and_is_named_by_the_rules(metrics: Metrics) -> None:
    metrics.collect_from(FleetCollector(lambda: fleet_view(worker_status("demo-0"))))
    for event, arguments, *_ in EVENTS:
        getattr(metrics, event)(**arguments)
    families = list(text_string_to_metric_families(exposition(metrics.registry)[0].decode()))
    assert len(families) > 40
    for family in families:
        assert re.fullmatch(r"cachefleet_[a-z_]+", family.name)
        assert family.documentation
        assert not re.search(r"_(ms|mib|percent|milliseconds)$", family.name)


def test_every_task_whose_errors_are_counted_is_there_from_the_start() -> None:
    """An alert sees the increase from 0 to 1, not a series that begins with 1."""
    root = Path(inspect.getfile(Metrics)).parent
    text = "".join(file.read_text() for file in root.rglob("*.py"))
    named = set(re.findall(r'(?:\.task_error|self\._start)\("(\w+)"', text))

    assert named == set(TASKS)
    assert {value(Metrics(), "task_errors_total", task=task) for task in TASKS} == {0.0}


def test_why_an_engine_serves_nothing_is_a_label_while_it_does() -> None:
    metrics, seen = Metrics(), [worker_status("demo-0", suspended="asleep")]
    metrics.collect_from(FleetCollector(lambda: fleet_view(*seen)))
    assert value(metrics, "worker_suspended", **WORKER, state="asleep") == 1
    assert value(metrics, "worker_ready", **WORKER) == 0
    seen[:] = [worker_status("demo-0")]
    assert "worker_suspended{" not in exposition(metrics.registry, "*/*")[0].decode()
    assert value(metrics, "worker_ready", **WORKER) == 1


def test_workers_that_nobody_lists_have_no_series() -> None:
    """Whoever may report could announce a thousand."""
    metrics = Metrics()
    metrics.collect_from(FleetCollector(lambda: fleet_view(*(worker_status(f"w-{n}", listed=False) for n in range(9)))))
    assert 'worker="w-' not in exposition(metrics.registry, "*/*")[0].decode()
