"""Workers that are killed, hang, come and go: rows 1, 3 and 30."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.chaos.measurements import measured
from tests.chaos.parts.invariants import Scenario
from tests.chaos.parts.local_fleet import ReplicaPart, chaos_fleet, so

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
VICTIM = "chaos-0"


async def _is_back(replica: ReplicaPart, *, other_than: str = "") -> bool:
    """Whether a worker's blocks are known again, of another epoch than that where one is named."""
    told = (await replica.workers())[VICTIM]
    return told["stream"] == "live" and not told["stale"] and told["epoch"] != other_than


async def test_a_killed_worker_that_returns_at_its_address(tmp_path: Path) -> None:
    async with chaos_fleet(tmp_path) as fleet:
        replica, worker, scenario = fleet.replicas[0], fleet.workers[VICTIM], Scenario(fleet)
        async with scenario.loaded():
            before = (await replica.workers())[VICTIM]
            assert before["heldBlocks"] > 0

            async def withdrawn() -> bool:
                told = (await replica.workers())[VICTIM]
                return bool(told["heldBlocks"] == 0 or told["epoch"] != before["epoch"])

            began = time.monotonic()
            worker.kill()
            await so(withdrawn)
            measured(1, "the killed engine's blocks gone, nothing heard of it", time.monotonic() - began, at_most=10)
            worker.engine.start()
            await so(lambda: _is_back(replica, other_than=before["epoch"]))
            await so(fleet.all_ready)
            await scenario.answered(100)
        share = 100 * (1 - scenario.failed / scenario.tally.ended)
        measured(1, "answers whole, but for begun streams that cannot be resumed", share, unit="%", at_least=99.9)
        await scenario.hold()


async def test_a_worker_that_hangs_and_goes_on(tmp_path: Path) -> None:
    async with chaos_fleet(tmp_path) as fleet:
        replica, worker, scenario = fleet.replicas[0], fleet.workers[VICTIM], Scenario(fleet)
        async with scenario.loaded():
            epoch = (await replica.workers())[VICTIM]["epoch"]
            began = time.monotonic()
            with worker.engine.hung():
                worker.deaths.append(began)

                async def out_of_rotation() -> bool:
                    return not (await replica.workers())[VICTIM]["ready"]

                await so(out_of_rotation)
                measured(3, "out of rotation", time.monotonic() - began, at_most=10)
                await asyncio.sleep(max(0.0, began + 30 - time.monotonic()))  # so long it hangs
            began = time.monotonic()
            await so(lambda: _is_back(replica))
            await so(fleet.all_ready)
            measured(3, "back", time.monotonic() - began, at_most=5)
            assert (await replica.workers())[VICTIM]["epoch"] == epoch
            await scenario.answered(50)
        await scenario.hold()
