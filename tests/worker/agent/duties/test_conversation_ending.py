"""Conversations that the plugin keeps end with the cache that they were kept for."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.engines.engine_errors import EngineError
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from tests.fakes.engine import FakeEngine
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.test_agent import prompt

Make = Callable[..., AgentSettings]
until = ControlPlane().until


class Followed:
    """An agent and its engine."""

    def __init__(self, engine: FakeEngine, agent: Agent, http: aiohttp.ClientSession) -> None:
        self.engine, self.agent, self._http = engine, agent, http

    @property
    def endings(self) -> int:
        return self.engine.plugin.endings

    async def generate(self, ids: list[int]) -> None:
        body = {"model": "fake", "token_ids": ids, "sampling_params": {"max_tokens": 2}}
        async with self._http.post(
            self.engine.url + "/inference/v1/generate", json=body, headers={"Authorization": "Bearer key"}
        ) as response:
            assert response.status == 200

    async def clear(self) -> None:
        """Clear the engine's cache, and wait until the agent knows."""
        await self.generate(prompt(1, 64))
        await until(lambda: self.agent.feed.streams[0].residents.held >= 4)
        clears = self.agent.feed.streams[0].clears
        assert self.engine.reset_prefix_cache()
        await self.generate([1, 2, 3])
        await until(lambda: self.agent.feed.streams[0].clears > clears)


@asynccontextmanager
async def following(make_settings: Make, **options: Any) -> AsyncIterator[Followed]:
    defaults: dict[str, Any] = {"api_key": "key", "num_blocks": 200, "block_size": 16, "plugin": True}
    async with (
        FakeEngine(**(defaults | options)) as engine,
        aiohttp.ClientSession() as http,
        running(make_settings(engine_url=engine.url)) as agent,
    ):
        await until(lambda: agent.epoch)
        yield Followed(engine, agent, http)


@pytest.mark.requirement("A9")
async def test_they_end_where_the_cache_is_cleared(make_settings: Make) -> None:
    async with following(make_settings) as followed:
        await followed.clear()
        await until(lambda: followed.endings == 1)
        await followed.clear()
        await until(lambda: followed.endings == 2)


async def test_they_end_where_the_engine_is_withdrawn(make_settings: Make) -> None:
    async with following(make_settings, nan_metric=True) as followed:
        followed.engine.end_badly(corrupted=1)
        await until(lambda: followed.endings == 1)


async def test_an_engine_without_them_is_not_asked(make_settings: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with following(make_settings, plugin=False) as followed:
        await followed.clear()
        followed.agent.controller.look_for_clears()
    assert "cache cleared, warm prefixes run again" in caplog.messages
    assert not [each for each in caplog.messages if "conversations" in each]


async def test_what_fails_is_left(make_settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(make_settings) as followed:
        asked: list[int] = []

        async def fail() -> int:
            asked.append(1)
            raise EngineError("the engine did not answer")

        with monkeypatch.context() as broken:
            broken.setattr(followed.agent.controller._conversations._policies, "end_conversations", fail)
            await followed.clear()
            await until(lambda: asked)
        await followed.clear()
        await until(lambda: followed.endings == 1)
