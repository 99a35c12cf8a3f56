"""A fake engine, its real agent and a control plane's report server in one process, and what each of them holds."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_local.fleet.ports import take_ports
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine
from tests.worker.agent.test_agent import prompt
from tests.worker.agent.test_joint import FLEET_INDEX_KEY, control_plane, truth


@dataclass(slots=True)
class Followed:
    """``agreed`` compares the index with the engine's own blocks, key by key of their digest."""

    engine: FakeEngine
    agent: Agent
    fleet: Fleet
    http: aiohttp.ClientSession
    asked: int = 0

    async def ask(self, times: int = 1) -> None:
        """Prompts of two blocks that were never asked before: a batch of events each."""
        for _ in range(times):
            self.asked += 1
            body = {"model": "fake", "prompt": prompt(self.asked, 70), "max_tokens": 1}
            url, headers = f"{self.engine.url}/v1/completions", {"authorization": "Bearer key"}
            async with self.http.post(url, json=body, headers=headers) as answer:
                assert answer.status == 200

    @property
    def indexed(self) -> int:
        """Blocks in the index."""
        return sum(self.fleet._index.stats().held.values())

    @property
    def held(self) -> int:
        """Blocks that the engine holds."""
        return len(self.engine.worker.pool.held())

    def agreed(self) -> bool:
        """Whether the index holds exactly what the engine does."""
        return self.indexed == self.held and self.is_sound()

    def is_sound(self) -> bool:
        """Whether the agent claims nothing that the engine does not hold, and the index what the agent claims."""
        residents = self.agent.feed.streams[0].residents
        claimed = {block.key for block in residents._names.live.values()}
        index = self.fleet._index
        same = all(index.digest(worker) == residents.digest for worker in index.stats().held)
        return same and claimed <= truth(self.engine, self.agent)


@asynccontextmanager
async def followed_engine(
    folder: Path, make_settings: Callable[..., AgentSettings], **options: Any
) -> AsyncIterator[Followed]:
    """Once the agent follows, and a first block is in the index; ``options`` are the engine's."""
    port = take_ports({"internal": 0})["internal"]
    (folder / "token").write_text("token")
    (folder / "index.key").write_text(base64.urlsafe_b64encode(FLEET_INDEX_KEY).decode())
    async with AsyncExitStack() as stack:
        engine = FakeEngine(api_key="key", num_blocks=4096, block_size=32, **options)
        await stack.enter_async_context(engine)
        settings = make_settings(
            engine_url=engine.url,
            control_planes=f"ws://127.0.0.1:{port}",
            token_file=folder / "token",
            weights="fake",
        )
        fleet = await stack.enter_async_context(control_plane(port))
        agent = await stack.enter_async_context(running(settings))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        made = Followed(engine, agent, fleet, http)
        await until(lambda: bool(agent.feed.streams))
        await made.ask()
        await until(lambda: made.indexed > 0 and made.agreed())
        yield made
