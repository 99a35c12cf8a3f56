"""Faults of several kinds one after the other, at random, under load: row 31. CHAOS_SECONDS is how long (300)."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.measurements import measured
from tests.chaos.parts.invariants import MIB, Scenario
from tests.chaos.parts.local_fleet import ChaosFleet, WorkerParts, chaos_fleet, so
from tests.chaos.test_databases import locked

SECONDS = float(os.environ.get("CHAOS_SECONDS", "300"))
WARM_SECONDS = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 900)]
Fault = Callable[[ChaosFleet, WorkerParts], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def killed_engine(_: ChaosFleet, worker: WorkerParts) -> AsyncIterator[None]:
    worker.kill()
    yield
    worker.engine.start()


@asynccontextmanager
async def killed_pod(_: ChaosFleet, worker: WorkerParts) -> AsyncIterator[None]:
    worker.kill()
    worker.agent.kill()
    yield
    worker.engine.start()
    worker.agent.start()


@asynccontextmanager
async def killed_agent(_: ChaosFleet, worker: WorkerParts) -> AsyncIterator[None]:
    worker.agent.kill()
    yield
    worker.agent.start()


@asynccontextmanager
async def hung_engine(_: ChaosFleet, worker: WorkerParts) -> AsyncIterator[None]:
    worker.deaths.append(time.monotonic())
    with worker.engine.hung():
        yield


@asynccontextmanager
async def hung_agent(_: ChaosFleet, worker: WorkerParts) -> AsyncIterator[None]:
    with worker.agent.hung():
        yield


@asynccontextmanager
async def locked_store(fleet: ChaosFleet, _: WorkerParts) -> AsyncIterator[None]:
    with locked(fleet.folder / "data-0" / "controlplane.db"):
        yield


FAULTS: tuple[Fault, ...] = (killed_engine, killed_pod, killed_agent, hung_engine, hung_agent, locked_store)


async def test_random_faults_one_after_the_other(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "") or time.time())
    chance = random.Random(seed)
    print(f"CHAOS_SEED={seed}")  # noqa: T201 - shown where it fails
    async with chaos_fleet(tmp_path, workers=3) as fleet:
        (replica,), scenario = fleet.replicas, Scenario(fleet)
        slowest, count, memory = 0.0, 0, 0
        async with scenario.loaded(seed=seed):
            began = time.monotonic()
            while time.monotonic() - began < SECONDS:
                if not memory and time.monotonic() - began > min(WARM_SECONDS, SECONDS / 2):
                    memory, warm = replica.part.memory(), time.monotonic()
                fault = chance.choice(FAULTS)
                async with fault(fleet, fleet.workers[f"chaos-{chance.randrange(3)}"]):
                    await asyncio.sleep(chance.uniform(1, 10))  # so long it lasts
                healing = time.monotonic()
                await so(fleet.all_ready)
                await so(lambda: _fresh(fleet))
                slowest, count = max(slowest, time.monotonic() - healing), count + 1
                assert scenario.failed == 0, (fault, dict(scenario.tally.failures), scenario.tally.examples)
        hours = (time.monotonic() - warm) / 3600
        measured(31, f"random faults in {SECONDS:.0f} s", count, unit="", at_least=1)
        measured(31, "slowest to heal", slowest, at_most=60)
        measured(31, "requests failed", scenario.failed, unit="", at_most=0)
        growth = (replica.part.memory() - memory) / MIB
        measured(31, "memory, more by after it was warm", growth, unit="MiB", at_most=max(hours, scenario.growth_mib))
        await scenario.hold()


async def _fresh(fleet: ChaosFleet) -> bool:
    told = [one for replica in fleet.replicas for one in (await replica.workers()).values()]
    return all(one["stream"] == "live" and not one["stale"] for one in told)
