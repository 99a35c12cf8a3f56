"""A fleet of fake engines with the real control plane and the real agents, each agent a process of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.parts import POOL, Engine, Running, agent_environment, plane, process
from cachefleet_core.tenancy import FleetKey, fleet_index_key
from cachefleet_local.fleet.ports import take_ports
from e2e.console.prometheus import Target
from tests.fakes.engine import FakeEngine

MODEL: Final = "bench"
BLOCK_SIZE: Final = 16
BLOCKS: Final = 513
"""Of a worker: 8,192 tokens."""
MAX_MODEL_LEN: Final = 3072
WORKERS: Final = ("bench-0", "bench-1")
SPEC: Final = (
    "prefixCache: {budgetMiB: 4}",
    "hit: {objective: {ratio: 0.6, windowSeconds: 60, minTokens: 1000}}",
    "continuation: {handles: true}",
    "admission: {maxQueueSeconds: 1}",
)
READY_SECONDS: Final = 60.0
_AT_ONCE: Final = {"CACHEFLEET_DRAIN_SECONDS": "0"}
"""Agents end when they are told to."""


@dataclass(frozen=True)
class FakeFleet:
    """A running fleet."""

    engines: Mapping[str, FakeEngine]
    running: Running
    agents: Mapping[str, int]
    """The port of each worker's agent."""

    @property
    def targets(self) -> list[Target]:
        """Whose metrics there are."""
        plane = Target("controlplane", "controlplane-0", self.running.internal.removeprefix("http://"))
        return [plane, *(Target("agents", name, f"127.0.0.1:{port}") for name, port in self.agents.items())]

    async def admin(self, http: aiohttp.ClientSession, path: str, body: Any) -> Any:
        """What the admin API answers to a POST."""
        headers = {"authorization": "Bearer admin"}
        async with http.post(f"{self.running.internal}/admin/v1/{path}", json=body, headers=headers) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def ready(self, http: aiohttp.ClientSession) -> None:
        """Until every worker's reports are there. TimeoutError after READY_SECONDS."""
        address, headers = f"{self.running.internal}/admin/v1/workers", {"authorization": "Bearer admin"}
        async with asyncio.timeout(READY_SECONDS):
            while True:
                async with http.get(address, headers=headers) as answer:
                    workers = (await answer.json())["items"]
                if sum(one["ready"] and one["stream"] == "live" for one in workers) == len(WORKERS):
                    return
                await asyncio.sleep(0.1)


@asynccontextmanager
async def fake_fleet(folder: Path) -> AsyncIterator[FakeFleet]:
    """Two workers of one pool, ended with the block. The engines run in this process."""
    key, everywhere = FleetKey.generate(), os.sched_getaffinity(0)
    ports = take_ports(dict.fromkeys(WORKERS, 0))
    async with AsyncExitStack() as engines:
        fakes = {name: await engines.enter_async_context(_engine(key)) for name in WORKERS}
        described = {name: _described(fake) for name, fake in fakes.items()}
        with ExitStack() as processes:
            opened = plane(folder, key, described, core=everywhere, spec=SPEC, continuation_canary_ratio="1")
            running = await asyncio.to_thread(processes.enter_context, opened)
            for name, engine in described.items():
                told = agent_environment(folder, running, name, engine)
                told |= {"CACHEFLEET_HTTP_PORT": str(ports[name]), **_AT_ONCE}
                arguments, log = ["-m", "cachefleet_worker.agent"], folder / f"{name}-agent.log"
                processes.enter_context(process(arguments, log=log, core=everywhere, environment=told))
            yield FakeFleet(fakes, running, ports)


def _engine(key: FleetKey) -> FakeEngine:
    return FakeEngine(
        model=MODEL,
        api_key=key.worker_key(POOL),
        plugin=True,
        index_key=fleet_index_key(key.index_key, "default", MODEL),
        block_size=BLOCK_SIZE,
        num_blocks=BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        prefill_tokens_per_second=40_000,
        inter_token_seconds=0.004,
        remembered_requests=1,
    )


def _described(fake: FakeEngine) -> Engine:
    return Engine(
        url=fake.url,
        events=fake.events_endpoint,
        replay=fake.replay_endpoint,
        model=MODEL,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        resource="nvidia.com/gpu",
    )
