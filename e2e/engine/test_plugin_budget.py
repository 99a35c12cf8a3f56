"""The budget on a running engine: changed live, seen by subscribers at once, and the count equal to the pool's own."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from cachefleet_core.continuation import KEEP_MEMBER
from cachefleet_core.tenancy import salt_digest
from cachefleet_local.models.tiny_model import SIZES, TINY_SOURCE
from e2e.engine.side import Held, Side
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

OPTIONS: Final = VllmOptions(plugin=True, num_blocks=256)
ROUNDS: Final = 6
SECONDS: Final = 60.0
"""Patience: an idle engine has no step with which to tell its subscribers later. bench.budget times it."""

on_engine = pytest.mark.parametrize("vllm_server", [OPTIONS], indirect=True)

GEMMA: Final = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "dtype": "float32",
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "max_position_embeddings": 2048,
    "query_pre_attn_scalar": 32,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class Fleet:
    """What the agent beside the engine may ask of it."""

    def __init__(self, side: Side) -> None:
        self._side = side

    async def bound(self, mib: int | None, **shares: Any) -> dict[str, Any]:
        """Put a policy with this budget, and its shares, in force; the rank's answer."""
        generation = (await self.stats())["generation"] + 1
        policy = {"pool": "default/budget", "generation": generation, "budget_mib": mib, **shares}
        answer = await self._side.send("/v1/fleet/policy", policy, method="PUT")
        assert answer.status == 200, answer
        return dict(answer.body["ranks"]["0"])

    async def stats(self) -> dict[str, Any]:
        return dict((await self._side.send("/v1/fleet/stats", method="GET")).body["ranks"]["0"])

    async def settled(self) -> None:
        """What is counted is what a recount finds, and no more than the bound; all of it is told to subscribers."""
        audit = (await self._side.send("/v1/fleet/audit", method="GET")).body["ranks"]["0"]
        assert audit["idle_counted"] == audit["idle_recounted"]
        stats = await self.stats()
        assert stats["faults"] == {}
        assert stats["budget_blocks"] is None or stats["blocks_idle"] <= stats["budget_blocks"]


def prompt(name: int, tokens: int = 900) -> list[int]:
    chance = random.Random(name)
    return [chance.randrange(300, 900) for _ in range(tokens)]


@pytest.fixture
async def side(vllm_server: VllmServer) -> AsyncIterator[Side]:
    async with aiohttp.ClientSession() as session:
        side = side_of(vllm_server, session)
        await Fleet(side).bound(None)
        await side.reset()
        yield side
        await Fleet(side).bound(None)


def side_of(server: VllmServer, session: aiohttp.ClientSession) -> Side:
    return Side(server.url, server.events_endpoint, server.replay_endpoint, server.headers, session)


async def subscribed(side: Side) -> zmq.asyncio.Socket:
    """A subscriber that has seen its first message, so that it misses none."""
    socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.subscribe(b"")
    socket.connect(side.events_endpoint)
    for attempt in range(50):
        await side.complete(prompt(9_000 + attempt, 64))
        if await socket.poll(200):
            break
    while await socket.poll(200):
        await socket.recv_multipart()
    return socket


@on_engine
async def test_a_reset_of_an_idle_engine_is_published_without_a_step(side: Side) -> None:
    """With no agent beside it, whose questions would bring it out too."""
    socket = await subscribed(side)
    await side.reset()
    kinds: list[str] = []
    async with asyncio.timeout(SECONDS):  # heartbeats come all the while
        while "AllBlocksCleared" not in kinds:
            kinds += [event["type"] for event in msgspec.msgpack.decode((await socket.recv_multipart())[2])[1]]
    socket.close()


@on_engine
async def test_a_tenant_over_its_share_evicts_its_own_and_what_is_asked_to_be_kept_goes_last(side: Side) -> None:
    """A MiB is 64 blocks of this model, a prompt 28 of them; what ``vllm_xargs`` say comes through Anthropic's API."""
    fleet = Fleet(side)
    await fleet.bound(1, cache_share=0.5)
    await side.complete(prompt(1), cache_salt="quiet")
    for name in range(2, 6):
        await side.complete(prompt(name), cache_salt="busy")
    told = (await fleet.stats())["idle_by_salt"]
    assert set(told) == {salt_digest("quiet"), salt_digest("busy")}
    assert sum(told.values()) == (await fleet.stats())["blocks_idle"]
    assert await side.cached(prompt(1), cache_salt="quiet") > 0
    assert await side.cached(prompt(2), cache_salt="busy") == 0
    await fleet.settled()

    await fleet.bound(1, keep_share=0.9)
    said = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "keep this " * 60}]}
    kept = said | {"cache_salt": "mine", "vllm_xargs": {KEEP_MEMBER: 300}}
    first = await side.send("/v1/messages", kept)
    assert first.status == 200, first
    for name in range(6, 11):
        await side.complete(prompt(name), cache_salt="busy")
    again = await side.send("/v1/messages", kept)
    assert again.body["usage"]["cache_read_input_tokens"] > 0, again.body
    await fleet.settled()


@on_engine
async def test_a_contracts_blocks_survive_another_tenants_flood(side: Side) -> None:
    """A MiB is 64 blocks of this model, a prompt 28 of them."""
    fleet = Fleet(side)
    promised = {"salt": salt_digest("promised"), "share": 0.5, "guaranteed": True, "retention_seconds": 3600}
    await fleet.bound(1, tenant_shares=[promised])
    await side.complete(prompt(1), cache_salt="promised")
    for name in range(2, 7):
        await side.complete(prompt(name), cache_salt="flood")
    assert await side.cached(prompt(1), cache_salt="promised") > 800
    assert (await fleet.stats())["held_by_salt"] == {salt_digest("promised"): [28, 0]}
    await fleet.settled()

    await fleet.bound(1, tenant_shares=[])
    for name in range(7, 10):
        await side.complete(prompt(name), cache_salt="flood")
    assert await side.cached(prompt(1), cache_salt="promised") == 0


@on_engine
@pytest.mark.requirement("C2")
async def test_a_lower_bound_evicts_an_idle_engines_blocks_at_once_and_subscribers_see_it(side: Side) -> None:
    fleet = Fleet(side)
    for name in range(7):
        await side.complete(prompt(name))
    socket = await subscribed(side)
    before = await fleet.stats()
    assert before["block_bytes"] == OPTIONS.block_size * SIZES[TINY_SOURCE].kv_bytes_per_token
    bound = 2**20 // before["block_bytes"]
    assert before["blocks_idle"] > 2 * bound
    asked = time.monotonic()
    answer = await fleet.bound(1)
    assert (answer["budget_blocks"], answer["blocks_idle"]) == (bound, bound)
    removed = 0
    while removed < before["blocks_idle"] - bound:
        assert await socket.poll(1000 * (asked + SECONDS - time.monotonic())), "the removals came too late"
        events = msgspec.msgpack.decode((await socket.recv_multipart())[2])[1]
        removed += sum(len(event["block_hashes"]) for event in events if event["type"] == "BlockRemoved")
    assert removed == before["blocks_idle"] - bound == answer["evicted"] - before["evicted"]
    socket.close()
    await fleet.settled()
    assert await side.cached(prompt(6)) == 896
    assert await side.cached(prompt(0)) == 0


@on_engine
async def test_zero_keeps_nothing_and_null_everything(side: Side) -> None:
    fleet = Fleet(side)
    await fleet.bound(0)
    for _ in range(2):
        assert await side.cached(prompt(1)) == 0
    await fleet.settled()
    assert (await fleet.stats())["blocks_idle"] == 0
    await fleet.bound(None)
    for name in range(6):
        assert await side.cached(prompt(name)) == 0
    for name in range(6):
        assert await side.cached(prompt(name)) == 896
    await fleet.settled()


@on_engine
async def test_the_count_survives_a_mixed_load_with_changes_of_the_bound(side: Side) -> None:
    """Shared beginnings, long answers, clients that hang up, more work than there is room for."""
    fleet = Fleet(side)
    chance = random.Random(7)

    async def request(name: int) -> None:
        body = prompt(chance.randrange(4), chance.randrange(32, 700)) + prompt(name, 40)
        try:
            async with asyncio.timeout(0.05 if chance.random() < 0.2 else 60):
                await side.complete(body, max_tokens=chance.choice([1, 8, 120]))
        except TimeoutError:
            return

    for round_ in range(ROUNDS):
        work = [asyncio.create_task(request(100 * round_ + name)) for name in range(16)]
        for _ in range(4):
            await asyncio.sleep(0.2)
            await fleet.bound(chance.choice([None, 0, 1, 2, 3]))
        await asyncio.gather(*work)
        await fleet.settled()
    while (await fleet.stats())["running"]:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.05)
    await fleet.settled()
    held = Held()
    held.apply(await side.replay())
    stats = await fleet.stats()
    assert stats["blocks_free"] == stats["blocks_total"] - 1
    assert sum(held.copies.values()) == stats["blocks_idle"]


@pytest.fixture(scope="module")
def hybrid(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A model with sliding-window and full attention and made-up weights."""
    folder = tmp_path_factory.mktemp("gemma")
    for path in tiny_model.iterdir():
        if path.name.startswith("tokenizer"):
            (folder / path.name).symlink_to(path)
    (folder / "config.json").write_text(json.dumps(GEMMA))
    options = VllmOptions(plugin=True, num_blocks=512, extra=("--load-format=dummy",))
    with running_vllm(options, folder, folder / "vllm.log") as server:
        yield server


@pytest.mark.requirement("C8")
async def test_chains_of_a_hybrid_model_are_kept_or_lost_as_a_whole(hybrid: VllmServer) -> None:
    async with aiohttp.ClientSession() as session:
        side = side_of(hybrid, session)
        fleet = Fleet(side)
        features = (await side.send("/v1/fleet/capabilities", method="GET")).body["features"]
        assert [one["mode"] for one in features if one["feature"] == "budget"] == ["chains"]
        await fleet.bound(2)
        for name in range(8):
            await side.complete(prompt(name), max_tokens=40)
            await fleet.settled()
        await fleet.bound(1)
        await fleet.settled()
        hits = [await side.cached(prompt(name)) for name in (7, 6, 5, 4)]
        assert hits[0] == 896
        assert hits == sorted(hits, reverse=True)
        assert set(hits) == {0, 896}
