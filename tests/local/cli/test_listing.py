"""Listings over the items that the admin API's own schemas give."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
import yaml

from cachefleet_controlplane.admin.decisions import decision_schemas
from cachefleet_controlplane.admin.schemas import Schema
from cachefleet_core.fleet_status.pool_facts import HitRatio, PoolFacts, WorkerCounts
from cachefleet_core.fleet_status.worker_facts import Load, WorkerFacts
from cachefleet_local.cli.listing import Item, Output, Rows, listing
from cachefleet_local.cli.output.columns import DECISIONS, POOLS, WORKERS
from cachefleet_local.cli_errors import FailureError

WORKER = WorkerFacts(
    id="default/demo/demo-0#0",
    name="demo-0",
    pool="default/demo",
    rank=0,
    url="http://127.0.0.1:9001",
    agent="http://127.0.0.1:9002",
    listed=True,
    ready=True,
    connected=True,
    stream="live",
    epoch="e",
    sequence=3,
    phase="ready",
    phase_reason=None,
    load=Load(
        running=1,
        waiting=2,
        waiting_tokens=None,
        blocks_total=384,
        blocks_free=300,
        blocks_idle=None,
        preemptions=0,
        prefill_tokens_per_second=None,
        loaded_tokens_per_second=None,
        inter_token_seconds=None,
        prefix_queries=0,
        prefix_hits=0,
    ),
    report_age_seconds=0.5,
    stale=False,
    held_blocks=84,
    held_bytes=None,
    cache_value=1.0,
    trust=1.0,
    excluded=False,
    differences=(),
    backing_off=False,
    inflight_requests=0,
    inflight_tokens=0,
    policy_generation=1,
    engine_version="0.32.0",
    capabilities=(),
)
POOL = PoolFacts(
    key="default/demo",
    namespace="default",
    name="demo",
    model="tiny",
    generation=1,
    contract=None,
    hit_ratio=HitRatio(
        value=None,
        window_seconds=600,
        objective=None,
        queried_tokens=0,
        hit_tokens=0,
        sampled=False,
        sampled_at=datetime(2027, 1, 15, tzinfo=UTC),
    ),
    workers=WorkerCounts(total=2, ready=1, fresh=1, excluded=0),
)
DECISION = decision_schemas.Decision(
    id="d1",
    at=datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    model="tiny",
    pool="default/demo",
    endpoint="/v1/chat/completions",
    policy="cacheAware",
    verdict="route",
    reason="longest_prefix",
    why="because",
    worker="demo-0",
    knowledge="exact",
    rung="render",
    render_failure=None,
    tenant="default",
    isolation="PerTenant",
    salt_version=1,
    prompt_tokens=100,
    predicted_tokens=96,
    cached_tokens=96,
    completion_tokens=16,
    ttft_seconds=0.0123,
    queued_seconds=None,
    status=200,
    attempts=(),
    candidates=(),
    candidates_left_out=0,
    shortfall=None,
    continuation=None,
)


def item(value: Schema | msgspec.Struct) -> Item:
    shown: Item = (
        json.loads(msgspec.json.encode(value))
        if isinstance(value, msgspec.Struct)
        else value.model_dump(mode="json", by_alias=True)
    )
    return shown


def table(text: str) -> list[list[str]]:
    return [line.split("  ") for line in text.splitlines()]


def test_workers_show_state_load_and_held_blocks() -> None:
    header, row = listing([item(WORKER)], WORKERS, Output.TABLE).splitlines()
    assert " ".join(header.split()) == "WORKER POOL STATE STREAM RUNNING WAITING FREE BLOCKS HELD BLOCKS REPORT"
    assert row.split() == ["demo-0", "default/demo", "ready", "live", "1", "2", "300/384", "84", "0.5", "s"]


def test_a_worker_that_never_reported_has_dashes() -> None:
    silent = msgspec.structs.replace(WORKER, load=None, report_age_seconds=None, ready=False, phase=None)
    row = listing([item(silent)], WORKERS, Output.TABLE).splitlines()[1]
    assert row.split() == ["demo-0", "default/demo", "unknown", "live", "-", "-", "-", "84", "-"]


def test_a_worker_that_serves_nothing_says_why() -> None:
    rows = [item(msgspec.structs.replace(WORKER, suspended=why)) for why in ("asleep", "updating_weights")]
    shown = listing(rows, WORKERS, Output.TABLE).splitlines()[1:]
    assert ["asleep" in shown[0], "updating weights" in shown[1]] == [True, True]


def test_an_excluded_worker_says_so() -> None:
    row = listing([item(msgspec.structs.replace(WORKER, excluded=True))], WORKERS, Output.TABLE).splitlines()[1]
    assert row.split()[2] == "excluded"


def test_pools_without_a_worker_yet() -> None:
    row = listing([item(POOL)], POOLS, Output.TABLE).splitlines()[1]
    assert row.split() == ["default/demo", "tiny", "1/2", "1", "0", "-", "-"]


def test_decisions_show_what_was_predicted_and_what_was_cached() -> None:
    row = listing([item(DECISION)], DECISIONS, Output.TABLE).splitlines()[1]
    assert " ".join(row.split()) == "03:04:05.678 d1 tiny demo-0 cacheAware exact 100 96 96 12 ms 200 longest_prefix"


def test_json_and_yaml_are_the_items_as_they_came() -> None:
    items = [item(WORKER)]
    assert json.loads(listing(items, WORKERS, Output.JSON)) == items
    assert yaml.safe_load(listing(items, WORKERS, Output.YAML)) == items


def test_json_keeps_what_only_a_newer_control_plane_knows() -> None:
    newer = {**item(WORKER), "mood": "calm"}
    assert json.loads(listing([newer], WORKERS, Output.JSON)) == [newer]
    assert listing([newer], WORKERS, Output.WIDE) == listing([item(WORKER)], WORKERS, Output.WIDE)


def test_an_answer_that_is_none_names_the_field() -> None:
    with pytest.raises(FailureError) as refused:
        listing([{**item(WORKER), "heldBlocks": "many"}], WORKERS, Output.TABLE)
    assert refused.value.lines == [
        "the control plane's answer is no WorkerFacts: Expected `int`, got `str` - at `$.heldBlocks`"
    ]


def test_names_are_those_that_other_commands_take() -> None:
    assert listing([item(POOL)], POOLS, Output.NAME) == "default/demo"
    assert listing([item(WORKER)], WORKERS, Output.NAME) == "default/demo/demo-0#0"
    assert listing([item(DECISION)], DECISIONS, Output.NAME) == "d1"


def test_wide_tables_have_more_columns_in_the_same_order() -> None:
    for one, columns in ((item(POOL), POOLS), (item(WORKER), WORKERS), (item(DECISION), DECISIONS)):
        narrow, wide = (listing([one], columns, output).splitlines()[0] for output in (Output.TABLE, Output.WIDE))
        assert set(narrow.split()) < set(wide.split())


def test_a_table_that_goes_on_keeps_its_columns() -> None:
    rows = Rows(WORKERS, Output.TABLE)
    first = rows.lines([item(WORKER)])
    second = rows.lines([item(msgspec.structs.replace(WORKER, name="demo-100"))])
    assert (len(first), len(second)) == (2, 1)
    assert second[0].split()[0] == "demo-100"
