"""Replicas of the control plane that are killed, or restarted one after the other: rows 10 and 11."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.soak_fleet import MODEL
from tests.chaos.measurements import measured
from tests.chaos.parts.invariants import Scenario
from tests.chaos.parts.local_fleet import ChaosFleet, WorkerParts, chaos_fleet, so
from tests.controlplane.replicas import FakeService
from tests.controlplane.store.postgresql import PostgreSQL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BLOCKS = 10_000
PROMPT_TOKENS = 8_000


async def _fill(worker: WorkerParts, number: int) -> None:
    """Cache so many blocks of one worker, by long prompts of its own."""
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {worker.key}"}) as http:
        for turn in range(BLOCKS * 16 // PROMPT_TOKENS + 1):
            text = f"{number} {turn} " + "block " * (PROMPT_TOKENS // 6 - 2)
            body = {"model": MODEL, "prompt": text, "max_tokens": 1}
            async with http.post(f"{worker.url}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()


async def test_a_killed_replica_knows_all_blocks_again(tmp_path: Path, postgresql: PostgreSQL) -> None:
    async with chaos_fleet(tmp_path, replicas=2, workers=4, database_url=postgresql.database()) as fleet:
        victim, other = fleet.replicas
        await asyncio.gather(*(_fill(worker, number) for number, worker in enumerate(fleet.workers.values())))
        await so(fleet.agreed)
        held = await _held(fleet)
        assert held >= 4 * BLOCKS
        scenario = Scenario(fleet)
        async with scenario.loaded(url=other.gateway):
            victim.part.kill()
            began, used = time.monotonic(), 0.0
            victim.part.start()
            scenario.forget(victim)
            await so(victim.ready)
            ready = time.monotonic()
            used = victim.part.seconds_used()

            async def known() -> bool:
                blocks: int = sum(one["heldBlocks"] for one in (await victim.workers()).values())
                return blocks >= 0.99 * held

            await so(known)
            whole = time.monotonic()
            measured(10, "ready again after SIGKILL, seconds of CPU", used, at_most=3)
            measured(10, "ready again after SIGKILL", ready - began)
            measured(10, "99 % of 40,000 blocks known, after it was ready", whole - ready, at_most=5)
            measured(10, "blocks known again a second", 0.99 * held / (whole - began), unit="")
            await scenario.answered(50)
        measured(10, "requests failed through the other replica", scenario.failed, unit="", at_most=0)
        await scenario.hold()


async def test_replicas_restarted_in_turn_cost_no_request(tmp_path: Path, postgresql: PostgreSQL) -> None:
    settings: dict[str, Any] = {"database_url": postgresql.database(), "withdraw_seconds": 5}
    async with (
        chaos_fleet(tmp_path, replicas=2, **settings) as fleet,
        FakeService(fleet.replicas, late=1.0).running() as service,
    ):
        scenario = Scenario(fleet)
        async with scenario.loaded(url=service.url):
            for replica in fleet.replicas:
                service.told_of_end(replica)
                began = time.monotonic()
                replica.part.end()
                await so(replica.part.ended)
                measured(11, "drained", time.monotonic() - began, at_most=30)
                assert replica.part.process is not None
                assert replica.part.process.returncode == 0
                replica.part.start()
                scenario.forget(replica)
                await so(replica.ready)
                service.told_of_start(replica)
                await scenario.answered(50)
        measured(11, "requests failed", scenario.failed, unit="", at_most=0)
        await scenario.hold()


async def _held(fleet: ChaosFleet) -> int:
    return sum([await worker.held() or 0 for worker in fleet.workers.values()])
