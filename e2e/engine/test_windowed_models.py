"""Models with several KV cache groups, or without full attention: what is predicted is what the engine serves."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.endpoints import Endpoints
from cachefleet_worker.agent.engines.vllm.events.epoch import Limits
from cachefleet_worker.agent.engines.vllm.events.follower import Follower
from cachefleet_worker.agent.engines.vllm.events.snapshot_client import SnapshotClient
from cachefleet_worker.agent.engines.vllm.events.source import Source, SourceLimits
from cachefleet_worker.agent.engines.vllm.plugin_api import read_capabilities
from cachefleet_worker.agent.metrics import AgentMetrics
from e2e.engine.plugin_client import call
from e2e.engine.side import Side
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm
from e2e.engine.windowed_models import made
from tests.controlplane.waiting import task
from tests.worker.agent.model import CONTRACT, INDEX_KEY

CONVERSATIONS: Final = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 8
"""Random conversations of each model, of some five turns."""
OPTIONS: Final = VllmOptions(plugin=True, num_blocks=160, extra=("--load-format=dummy",))
W: Final = worker_id("ns/p", "w")


class Watched:
    """A running engine, followed as by an agent into an index."""

    def __init__(self, server: VllmServer, side: Side) -> None:
        answer = call(server, "GET", "/v1/fleet/capabilities")
        self.rank = read_capabilities(answer.content).ranks[0]
        self.block = self.rank.block_size
        self.side = side
        self.residents = Residents(INDEX_KEY, CONTRACT, block_size=self.block, groups=self.rank.groups)
        self.index: BlockIndex = BlockIndex()
        self.follower = Follower(replay=False, snapshots=True, limits=Limits())
        self.source = Source(
            0,
            Endpoints(server.events_endpoint, ""),
            self.follower,
            self.residents,
            AgentMetrics(),
            limits=SourceLimits(),
            changed=self._report,
            restarted=pytest.fail,
            snapshots=SnapshotClient(server.url, key=server.options.api_key),
        )
        self._keyer = BlockKeyer(INDEX_KEY, Namespace(CONTRACT), self.block)

    def _report(self) -> None:
        for operation in self.residents.take():
            self.index.apply(W, operation)

    async def caught_up(self) -> None:
        """Until all that the engine has done is known."""
        async with asyncio.timeout(60):
            stats = (await self.side.send("/v1/fleet/stats", method="GET")).body["ranks"]["0"]
            while self.follower.next_seq <= stats["sequence"] or not self.follower.whole:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def predicted(self, tokens: list[int]) -> int:
        usable = (len(tokens) - 1) // self.block
        keys = self._keyer.keys(tokens)
        (blocks,) = self.index.match(keys, [W], rules=[self.residents.rule], usable=usable)
        return min(blocks, usable) * self.block


@asynccontextmanager
async def watched(server: VllmServer) -> AsyncIterator[Watched]:
    async with aiohttp.ClientSession() as session:
        side = Side(server.url, server.events_endpoint, server.replay_endpoint, server.headers, session)
        found = Watched(server, side)
        async with task(found.source.run()):
            yield found


class Talks:
    """Random conversations: prompts that go on after an answer or without it, fork and step back."""

    def __init__(self, block: int, seed: int) -> None:
        self._block = block
        self._chance = random.Random(seed)
        self._known: list[list[int]] = [[]]

    def prompt(self) -> list[int]:
        before = self._chance.choice(self._known[-8:])
        kept = before if self._chance.random() < 0.6 else before[: self._chance.randrange(len(before) + 1)]
        fresh = [self._chance.randrange(10, 900) for _ in range(self._chance.randrange(1, 5 * self._block))]
        return (kept + fresh)[: 28 * self._block]

    def answered(self, prompt: list[int], answer: list[int]) -> None:
        self._known.append(prompt + answer)

    def length(self) -> int:
        return self._chance.choice([1, 1, self._block // 2, 2 * self._block])


SLOW: Final = pytest.mark.slow


@pytest.fixture(params=["gemma", *(pytest.param(name, marks=SLOW) for name in ("olmo", "mistral", "lfm"))])
def server(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Iterator[VllmServer]:
    folder = made(request.param, tiny_model, tmp_path)
    with running_vllm(OPTIONS, folder, tmp_path / "vllm.log") as running:
        yield running


@pytest.mark.requirement("C8")
async def test_predicted_is_served_in_every_turn(server: VllmServer) -> None:
    async with watched(server) as engine:
        await engine.caught_up()
        assert not engine.residents.rule.plain
        assert not engine.residents.unknown
        talks, hits = Talks(engine.block, seed=1), 0
        for _ in range(5 * CONVERSATIONS):
            prompt = talks.prompt()
            predicted = engine.predicted(prompt)
            answer = (await engine.side.complete(prompt, max_tokens=talks.length(), return_token_ids=True)).body
            served = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert predicted == served
            hits += served > 0
            talks.answered(prompt, answer["choices"][0]["token_ids"])
            await engine.caught_up()
        assert hits > CONVERSATIONS
        assert not engine.residents.unkeyed
