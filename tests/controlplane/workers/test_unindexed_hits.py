"""When an engine serves from a cache of which the index holds nothing."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_controlplane.workers.unindexed_hits import MIN_REPORTS, NONE, UnindexedHits, expects_blocks
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_frames import Capability, Hello, Phase, State
from tests.controlplane.fleets import pool


def state(**given: Any) -> State:
    least: dict[str, Any] = {"sequence": 0, "digest": 0, "held": 0, "phase": Phase.READY, "running": 0, "waiting": 0}
    return State(**(least | {"unkeyed": False} | given))


def hello(**modes: str) -> Hello:
    told = tuple(Capability(feature=name, mode=mode) for name, mode in modes.items())
    contract = IndexContract(weights="w", tokenizer="t", block_size=16)
    return Hello(worker="w", pool="a/b", epoch="e", endpoint="http://w", contract=contract, capabilities=told)


def after(count: int, *, every: float, found: UnindexedHits = NONE) -> UnindexedHits:
    for number in range(count):
        found = found.after(16, state(), number * every)
    return found


def test_many_reports_over_a_while_are_needed() -> None:
    assert not after(MIN_REPORTS - 1, every=60).blind
    assert not after(1000, every=0.05).blind, "in less than a minute"
    assert after(MIN_REPORTS, every=7).blind


def test_a_held_block_ends_it_and_silence_does_not() -> None:
    found = after(MIN_REPORTS, every=7)

    assert found.after(0, state(), 1000).blind
    assert found.after(16, state(held=1), 1000) == NONE


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.WARMING, Phase.DRAINING, Phase.FAILED])
def test_only_a_worker_that_takes_requests_is_looked_at(phase: Phase) -> None:
    assert NONE.after(16, state(phase=phase), 1) == NONE


PLUGIN = hello(events="zmq", snapshot="full")


@pytest.mark.parametrize(
    ("spec", "said", "told", "expected"),
    [
        ({}, PLUGIN, {}, True),
        ({}, hello(events="off", snapshot="off"), {}, True),
        ({}, hello(events="zmq", snapshot="off"), {}, False),
        ({}, PLUGIN, {"unkeyed": True}, False),
        ({}, PLUGIN, {"unkeyed": None}, False),
        ({}, None, {}, False),
        ({"prefixCache": {"enabled": False}}, PLUGIN, {}, False),
        ({"prefixCache": {"budgetMiB": 0}}, PLUGIN, {}, False),
    ],
)
def test_where_an_index_without_blocks_is_normal_nothing_is_expected(
    spec: dict[str, Any],
    said: Hello | None,
    told: dict[str, Any],
    expected: bool,  # noqa: FBT001 - a case's expectation
) -> None:
    cache = {"prefixCache": {"budgetMiB": 64}}
    assert expects_blocks(pool(**(cache | spec)).spec, said, state(**told)) is expected
