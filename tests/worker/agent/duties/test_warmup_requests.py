"""Prompts run for their cache, by the requests that reach the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.duties.warm_prefixes import Prefixes
from cachefleet_worker.agent.duties.warmup_requests import Warmer
from cachefleet_worker.agent.engines.prompt_run import PromptRun
from cachefleet_worker.agent.engines.vllm.http_client import EngineClient
from cachefleet_worker.agent.metrics import AgentMetrics
from tests.fakes.engine import FakeEngine
from tests.worker.agent.fake_control_plane import ControlPlane

MESSAGES = msgspec.json.encode([{"role": "system", "content": "x"}])


@pytest.mark.parametrize(("ranks", "expected"), [(1, [None]), (3, ["0", "1", "2"])])
async def test_every_rank_is_asked_by_name_where_there_are_several(ranks: int, expected: list[str | None]) -> None:
    prefixes = Prefixes(limit=8, retry_base=1.0, retry_cap=1.0)
    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        client = EngineClient(http, engine.url)
        warmer = Warmer(
            client,
            AgentMetrics(),
            prefixes,
            ranks=ranks,
            timeout_seconds=5.0,
            changed=lambda: None,
            corrupted=lambda: None,
        )
        prefixes.once([Prefix(name="p", messages=MESSAGES)])
        task = asyncio.create_task(warmer.run("fake"))
        await ControlPlane().until(lambda: prefixes.warmth.done == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [seen.headers.get("X-data-parallel-rank") for seen in engine.requests] == expected


async def test_a_prompt_that_gives_what_is_no_number_is_told() -> None:
    prefixes, told = Prefixes(limit=8, retry_base=1.0, retry_cap=1.0), asyncio.Event()

    class Client:
        async def cache_prompt(self, *_: Any, **__: Any) -> PromptRun:
            return PromptRun(prompt_tokens=1, finish_reason="length", logprobs=(None,))

    warmer = Warmer(
        Client(),  # type: ignore[arg-type] # the one method that is used
        AgentMetrics(),
        prefixes,
        ranks=1,
        timeout_seconds=5.0,
        changed=lambda: None,
        corrupted=told.set,
    )
    prefixes.once([Prefix(name="p", messages=MESSAGES)])
    task = asyncio.create_task(warmer.run("fake"))
    await asyncio.wait_for(told.wait(), 40)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert prefixes.warmth.failed == ("p",)


async def test_windows_are_not_announced_again_since_a_stock_engine_names_blocks_that_it_has_not() -> None:
    prefixes = Prefixes(limit=8, retry_base=1.0, retry_cap=1.0)
    windowed = iter((False, True))
    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        warmer = Warmer(
            EngineClient(http, engine.url),
            AgentMetrics(),
            prefixes,
            ranks=1,
            timeout_seconds=5.0,
            changed=lambda: None,
            corrupted=lambda: None,
            windowed=lambda: next(windowed),
        )
        prefixes.once([Prefix(name=name, messages=MESSAGES) for name in "pq"])
        task = asyncio.create_task(warmer.run("fake"))
        await ControlPlane().until(lambda: prefixes.warmth.done == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        modes = [msgspec.json.decode(seen.body)["vllm_xargs"]["kv_cache_report_mode"] for seen in engine.requests]
        assert modes == ["full", "incremental"]
