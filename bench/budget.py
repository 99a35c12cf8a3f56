"""How long an engine takes to keep a budget that is changed while it runs.

    python -m bench.budget

The cache of a real server is filled; then one budget after the other is put in force, smaller and smaller. Measured is
from the request until its answer, by when the idle cached blocks are under the bound and their removals are published.
The engine's count is held against a recount over all blocks after each change.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench import rows
from cachefleet_local.models.tiny_model import tiny_model_path
from e2e.engine.load import Policies, audit, inconsistencies, settled, stats
from e2e.engine.side import Side
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

MIB: Final = 1024 * 1024
OPTIONS: Final = VllmOptions(forked=False, plugin=True, num_blocks=4096, max_model_len=2048, max_batched_tokens=2048)
PROMPTS: Final = 60
PROMPT_TOKENS: Final = 2000
BUDGETS: Final = (48, 40, 32, 24, 16, 8, 4, 2, 1, 0)
"""MiB; a block of the tiny model is 16 KiB."""


def run() -> list[rows.Row]:
    """The rows of this part. RuntimeError where a budget is not kept or a count is wrong."""
    with (
        tempfile.TemporaryDirectory() as name,
        running_vllm(OPTIONS, tiny_model_path(), Path(name) / "vllm.log") as server,
    ):
        return asyncio.run(_measured(server))


async def _measured(server: VllmServer) -> list[rows.Row]:
    chance = random.Random(0)
    async with aiohttp.ClientSession() as session:
        side = Side(server.url, server.events_endpoint, server.replay_endpoint, server.headers, session)
        policies = Policies(side)
        await policies.put()
        await _fill(side, chance)
        filled = (await settled(side))["blocks_idle"]
        changes = [await _change(side, policies, budget) for budget in BUDGETS]
        evicted = (await stats(side))["evicted"]
        await _no_reuse(side, chance)
        await policies.put(budget_mib=None)
        await _reuse(side, chance)
    return [
        rows.row("budget, until a live change is kept, median", rows.median(changes), unit="s"),
        rows.row("budget, until a live change is kept, largest", max(changes), unit="s"),
        rows.row("budget, blocks evicted by the changes", evicted, filled, unit="blocks"),
    ]


async def _fill(side: Side, chance: random.Random) -> None:
    for _ in range(PROMPTS):
        await side.complete(_prompt(chance))


async def _change(side: Side, policies: Policies, budget: int) -> float:
    """Seconds until the budget is kept."""
    began = time.perf_counter()
    told: dict[str, Any] = (await policies.put(budget_mib=budget))["ranks"]["0"]
    seconds = time.perf_counter() - began
    if told["blocks_idle"] * told["block_bytes"] > budget * MIB:
        raise RuntimeError(f"{told['blocks_idle']} idle blocks are over a budget of {budget} MiB")
    if wrong := inconsistencies(await audit(side)):
        raise RuntimeError(f"after a budget of {budget} MiB: {wrong}")
    return seconds


async def _no_reuse(side: Side, chance: random.Random) -> None:
    prompt = _prompt(chance)
    if await side.cached(prompt) or await side.cached(prompt):
        raise RuntimeError("a budget of 0 leaves something to reuse")


async def _reuse(side: Side, chance: random.Random) -> None:
    prompt = _prompt(chance)
    if await side.cached(prompt) or not await side.cached(prompt):
        raise RuntimeError("without a budget nothing is reused")


def _prompt(chance: random.Random) -> list[int]:
    return [chance.randrange(300, 2000) for _ in range(PROMPT_TOKENS)]


if __name__ == "__main__":
    for row in run():
        print(row)
