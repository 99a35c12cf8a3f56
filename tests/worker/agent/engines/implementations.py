"""The engines that the behaviour suite of the Protocol runs over, each with what its users do to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp

from cachefleet_core.block_keys import BlockKey, BlockKeyer
from cachefleet_worker.agent.engines.engine import Engine
from cachefleet_worker.agent.engines.vllm.vllm_engine import VllmEngine
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.settings import AgentSettings
from tests.fakes.engine import FakeEngine
from tests.worker.agent.engines.memory_engine import MemoryEngine

Make = Callable[..., AgentSettings]


class Implementation(Protocol):
    """An engine as the agent sees it, and the engine itself."""

    engine: Engine

    async def crash(self) -> None: ...
    async def start(self) -> None: ...
    async def generate(self, tokens: list[int], salt: str = "") -> None: ...
    async def clear(self) -> None: ...
    def held_keys(self, keyer: Callable[[str], BlockKeyer]) -> set[BlockKey]: ...


class InMemory:
    """``MemoryEngine``, whose users call it."""

    def __init__(self, itself: MemoryEngine) -> None:
        self.engine: Engine = itself
        self._itself = itself
        self.held_keys = itself.held_keys

    async def crash(self) -> None:
        self._itself.crash()

    async def start(self) -> None:
        self._itself.start()

    async def generate(self, tokens: list[int], salt: str = "") -> None:
        self._itself.generate(tokens, salt)

    async def clear(self) -> None:
        self._itself.clear()


class OverHttp:
    """``VllmEngine`` beside a fake vLLM, whose users send requests."""

    def __init__(self, engine: VllmEngine, itself: FakeEngine, http: aiohttp.ClientSession) -> None:
        self.engine: Engine = engine
        self._itself, self._http = itself, http
        self.crash, self.start, self.held_keys = itself.crash, itself.start, itself.held_keys

    async def generate(self, tokens: list[int], salt: str = "") -> None:
        body = {"model": "fake", "prompt": tokens, "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
        headers = {"Authorization": "Bearer key"}
        async with self._http.post(self._itself.url + "/v1/completions", json=body, headers=headers) as response:
            assert response.status == 200

    async def clear(self) -> None:
        """The event goes out with the next step's."""
        assert self._itself.reset_prefix_cache()
        await self.generate([1])


@asynccontextmanager
async def in_memory(_settings: Make, *, publishes: bool = True) -> AsyncIterator[Implementation]:
    yield InMemory(MemoryEngine(publishes=publishes))


@asynccontextmanager
async def vllm(make_settings: Make, *, publishes: bool = True, plugin: bool = False) -> AsyncIterator[Implementation]:
    options: dict[str, Any] = {"loads_adapters": True, "adapter_slots": 2, "max_model_len": 512}
    async with (
        FakeEngine(api_key="key", events=publishes, plugin=plugin, block_size=4, **options) as itself,
        aiohttp.ClientSession() as http,
    ):
        settings = make_settings(engine_url=itself.url)
        yield OverHttp(VllmEngine(settings, http, AgentMetrics()), itself, http)
