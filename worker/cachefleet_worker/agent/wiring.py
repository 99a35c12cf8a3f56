"""Builds the agent beside its engine: the one place that names an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.engines.vllm.vllm_engine import VllmEngine
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.settings import AgentSettings


def build_agent(settings: AgentSettings, http: aiohttp.ClientSession) -> Agent:
    """The agent of a vLLM worker. OSError or ValueError where a file or the native module cannot be used."""
    metrics = AgentMetrics()
    return Agent(settings, VllmEngine(settings, http, metrics), metrics, http)


@asynccontextmanager
async def running(settings: AgentSettings) -> AsyncIterator[Agent]:
    """Run an agent inside this process for the block's duration (tests); errors of the agent are dropped."""
    async with aiohttp.ClientSession(trust_env=False) as http:
        agent = build_agent(settings, http)
        task = asyncio.create_task(agent.run())
        try:
            yield agent
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
