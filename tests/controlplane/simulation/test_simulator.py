"""Simulations of a live fleet: a gateway before fake engines is recorded, and its requests are played again."""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cachefleet_controlplane.history.recorded_requests import RecordedRequests
from cachefleet_controlplane.simulation.fleet_model import Changes
from cachefleet_controlplane.simulation.simulator import Simulator, WantedSimulation
from cachefleet_controlplane.simulation.workload import TraceLine
from cachefleet_controlplane.wire.errors import ApiError
from tests.controlplane.fleets import LiveFleet, fleet_of, pool, view
from tests.controlplane.gateway.harness import POOL, Front, engine, front
from tests.controlplane.waiting import until

BOUNDS: Any = {"seconds": 60.0, "memory": 1 << 30}
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
FAILS = (sys.executable, "-c", "raise SystemExit('out of luck')")
ABORTS = (sys.executable, "-c", "import os; os.abort()")
LINE = TraceLine(timestamp=0, input_length=64, output_length=4, hash_ids=(1, 2, 3, 4))
TRACE = WantedSimulation(trace=(LINE,) * 3, trace_block=16)


def reporting(**options: Any) -> LiveFleet:
    fleet = fleet_of("demo-0", "demo-1")
    for name in ("demo-0", "demo-1"):
        fleet.report(name, **options)
    return fleet


def simulator(fleet: LiveFleet | None = None, **options: Any) -> Simulator:
    given: dict[str, Any] = BOUNDS | options
    return Simulator(fleet or reporting(), RecordedRequests(1 << 20), **given)


async def talked(gate: Front) -> None:
    """Two conversations of three turns under one beginning, one after the other, each turn reported."""
    said = {"a": "one two three four five six seven " * 9, "b": "one two three four five six seven " * 9}
    for turn in range(3):
        for talk in ("a", "b"):
            said[talk] += f" and {talk} said {turn} in its turn " * 8
            gate.report(0)
            status, _, _ = await gate.chat(said[talk])
            assert status == 200
            await until(partial(_counted, gate, 2 * turn + "ab".index(talk) + 1))


def _counted(gate: Front, requests: int) -> bool:
    return len(gate.records) == requests


async def test_what_a_fake_fleet_served_is_what_is_simulated() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        await talked(gate)
        records = gate.recorded.latest(POOL, 10)
        assert len(records) == 6
        assert all(record.keys and record.prompt_tokens for record in records)
        gate.report(0, **gate.load(0))
        told = await Simulator(gate.fleet, gate.recorded, **BOUNDS)(
            WantedSimulation(recorded=10, changes=Changes(policy="roundRobin", workers=6))
        )
    assert told.happened is not None
    happened, today, changed = told.happened, told.today.figures, told.changed.figures
    assert happened.requests == today.requests == changed.requests == 6
    assert happened.prompt_tokens == today.prompt_tokens == sum(record.prompt_tokens for record in records)
    assert happened.hit_ratio is not None
    assert happened.hit_ratio > 0.5
    assert today.hit_ratio == pytest.approx(happened.hit_ratio, abs=0.02)
    assert changed.recomputed_tokens == changed.prompt_tokens  # each on a worker of its own
    assert (told.today.setup.workers, told.changed.setup.workers) == (1, 6)


async def test_of_twice_as_many_records_the_first_half_warms_up() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        await talked(gate)
        gate.report(0, **gate.load(0))
        told = await Simulator(gate.fleet, gate.recorded, **BOUNDS)(WantedSimulation(recorded=4))
    assert (told.warm_up, told.today.figures.requests) == (2, 4)
    assert told.happened is not None
    assert told.happened.requests == 4
    assert told.today.figures.hit_ratio == pytest.approx(told.happened.hit_ratio, abs=0.02)


async def test_a_trace_is_played_and_nothing_happened() -> None:
    told = await simulator()(TRACE)
    assert told.happened is None
    assert (told.today.figures.requests, told.today.figures.prompt_tokens) == (3, 192)
    assert told.changed.figures == told.today.figures


async def test_one_at_a_time_and_gone_with_its_caller(tmp_path: Path) -> None:
    """A cancelled simulation ends its process, and another may run."""
    told = tmp_path / "pid"
    script = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(f'{{os.getpid()}}.'); time.sleep(600)"
    simulate = simulator(command=(sys.executable, "-c", script))
    task = asyncio.create_task(simulate(TRACE))
    await until(lambda: told.exists() and told.read_text().endswith("."))
    with pytest.raises(ApiError, match="another simulation is running") as refused:
        await simulate(TRACE)
    assert refused.value.status == 409
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text().removesuffix(".")), 0)
    with pytest.raises(ApiError, match="answered no request"):
        await simulate(WantedSimulation(recorded=5))


@pytest.mark.parametrize(
    ("options", "wanted", "status", "words"),
    [
        (
            {"command": SLEEPS, "seconds": 0.1},
            TRACE,
            422,
            "more than 0.1 s: simulate fewer",
        ),
        ({"command": ABORTS}, TRACE, 422, r"more than 1024 MiB \(CACHEFLEET_SIMULATION_MEMORY_BYTES\)"),
        ({"command": FAILS}, TRACE, 500, "failed: out of luck"),
        ({}, WantedSimulation(recorded=5), 409, "answered no request .* lack the block keys"),
        ({}, WantedSimulation(pool="a/b", recorded=5), 404, "no pool a/b; pools: default/demo"),
        ({}, WantedSimulation(trace=(LINE,), trace_block=24), 422, "multiple of the pool's blocks of 16"),
        (
            {},
            WantedSimulation(trace=(LINE,), trace_block=16, changes=Changes(budget_mib=5)),
            422,
            "how large a block is",
        ),
        ({"fleet": fleet_of("demo-0")}, TRACE, 409, "no worker of pool default/demo is ready"),
        ({"fleet": reporting(not_indexed="hybrid")}, TRACE, 422, "need more than a prefix"),
    ],
)
async def test_what_cannot_be_simulated(
    options: dict[str, Any], wanted: WantedSimulation, status: int, words: str
) -> None:
    with pytest.raises(ApiError, match=words) as refused:
        await simulator(**options)(wanted)
    assert refused.value.status == status


async def test_of_several_pools_one_is_named() -> None:
    fleet = reporting()
    fleet.update_pools([view(pool(), ["demo-0"]), view(pool("other"), ["other-0"])])
    with pytest.raises(ApiError, match="several pools: name one; pools: default/demo, default/other") as refused:
        await simulator(fleet)(TRACE)
    assert refused.value.status == 422


async def test_without_memory_it_says_which_setting() -> None:
    with pytest.raises(ApiError, match="CACHEFLEET_RECORDED_REQUEST_BYTES"):
        await Simulator(reporting(), RecordedRequests(0), **BOUNDS)(WantedSimulation(recorded=5))


async def test_more_work_than_fits_into_its_time_is_refused_before_it_begins() -> None:
    """A trace of few bytes with long answers held the one simulation for all its time."""
    hostile = WantedSimulation(
        trace=(TraceLine(timestamp=0, input_length=16, output_length=4000),) * 8000, trace_block=16
    )
    simulate = simulator(reporting(blocks_total=1000), command=SLEEPS)
    with pytest.raises(ApiError, match="more than 6,000,000 steps and blocks, namely 34,008,000") as error:
        await simulate(hostile)
    assert error.value.status == 422


async def test_work_that_was_not_foreseen_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As reports in long pauses, and what is computed again after preemptions."""
    spread = tuple(TraceLine(timestamp=1e6 * number, input_length=64, output_length=4) for number in range(200))
    monkeypatch.setattr("cachefleet_controlplane.simulation.simulator.WORK_PER_SECOND", 60)
    with pytest.raises(ApiError, match="more than 7,200 steps, blocks and reports") as error:
        await simulator()(WantedSimulation(trace=spread, trace_block=16, changes=Changes(workers=64)))
    assert error.value.status == 422


async def test_more_memory_than_it_may_take_is_refused() -> None:
    many = tuple(
        TraceLine(timestamp=0, input_length=4000, output_length=1, hash_ids=(number,)) for number in range(4000)
    )
    with pytest.raises(ApiError, match="more than 64 MiB") as error:
        await simulator(reporting(blocks_total=1000), memory=1 << 26)(WantedSimulation(trace=many, trace_block=4000))
    assert error.value.status == 422
