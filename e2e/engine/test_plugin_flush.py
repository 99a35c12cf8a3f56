"""Flushing on a running engine: what goes is computed again, what stays is served, and every block is announced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import msgspec
import pytest

from cachefleet_core.engine.cache_flush import FLUSH_PATH, FlushAnswer, FlushAsk, Flushed
from cachefleet_core.tenancy import salt_digest
from e2e.engine.side import Held, Side
from e2e.engine.test_plugin_budget import prompt
from e2e.engine.vllm import VllmOptions, VllmServer
from tests.fakes.engine import FakeEngine

OPTIONS: Final = VllmOptions(plugin=True, num_blocks=256)
BLOCK: Final = OPTIONS.block_size
SYSTEM: Final = {"role": "system", "content": "You answer questions about the harbour of a small town. " * 6}

pytestmark = pytest.mark.parametrize("vllm_server", [OPTIONS], indirect=True)


class Flushing:
    """One engine, flushed as a control plane does."""

    def __init__(self, side: Side) -> None:
        self.side = side

    async def refused(self, ask: FlushAsk) -> tuple[int, str]:
        answer = await self.side.send(FLUSH_PATH, msgspec.json.encode(ask))
        return answer.status, answer.body["error"]["code"]

    async def __call__(self, *, dry_run: bool = False, **ask: Any) -> Flushed:
        answer = await self.side.send(FLUSH_PATH, msgspec.json.encode(FlushAsk(dry_run=dry_run, **ask)))
        assert answer.status == 200, answer
        return msgspec.convert(answer.body, FlushAnswer, strict=False).ranks[0]

    async def held(self) -> int:
        """Distinct blocks that the events so far say are cached."""
        held = Held()
        held.apply(await self.side.replay())
        return len(held.copies)

    async def chat(self, question: str, **more: Any) -> int:
        """Tokens of a chat's prompt that were cached."""
        body = {"model": "tiny", "max_tokens": 1, "messages": [SYSTEM, {"role": "user", "content": question}], **more}
        answer = await self.side.send("/v1/chat/completions", body)
        assert answer.status == 200, answer
        return int(answer.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def sound(self) -> None:
        """What the plugin keeps of the cache is what the pool has."""
        audit = (await self.side.send("/v1/fleet/audit", method="GET")).body["ranks"]["0"]
        assert audit["idle_counted"] == audit["idle_recounted"]
        assert (audit["ledger_missing"], audit["ledger_extra"]) == (0, 0)
        assert (await self.stats())["faults"] == {}

    async def stats(self) -> dict[str, Any]:
        return dict((await self.side.send("/v1/fleet/stats", method="GET")).body["ranks"]["0"])


@pytest.fixture
async def flush(vllm_server: VllmServer) -> AsyncIterator[Flushing]:
    async with aiohttp.ClientSession() as session:
        side = Side(
            vllm_server.url, vllm_server.events_endpoint, vllm_server.replay_endpoint, vllm_server.headers, session
        )
        await side.reset()
        yield Flushing(side)


async def test_a_tenant_is_computed_again_and_anothers_hits_stay(flush: Flushing) -> None:
    side = flush.side
    for name in range(3):
        for salt in "ab":
            await side.complete(prompt(name, 400), cache_salt=salt)
    mine: dict[str, Any] = {"salts": (salt_digest("a"),)}
    before, held = (await flush.stats())["flushed"], await flush.held()
    foreseen = await flush(dry_run=True, **mine)
    assert (foreseen.tokens, foreseen.busy) == (3 * (400 // BLOCK) * BLOCK, 0)
    assert (await flush.held(), (await flush.stats())["flushed"]) == (held, before)
    start = await side.next_sequence()
    assert await flush(**mine) == foreseen
    events = [event for batch in await side.replay(start) for event in batch.events]
    assert {event["type"] for event in events} == {"BlockRemoved"}
    assert sum(len(event["block_hashes"]) for event in events) == foreseen.blocks
    assert (await flush.held(), (await flush.stats())["flushed"]) == (held - foreseen.blocks, before + foreseen.blocks)
    assert await flush(**mine) == Flushed()
    await flush.sound()
    assert await side.cached(prompt(0, 400), cache_salt="a") == 0
    assert await side.cached(prompt(0, 400), cache_salt="b") == 400 // BLOCK * BLOCK


async def test_a_system_prompt_goes_with_every_chat_that_begins_with_it(flush: Flushing) -> None:
    for salt in "ab":
        for question in ("When does it open?", "Who runs it?"):
            await flush.chat(question, cache_salt=salt)
    shared = await flush.chat("What does it cost?", cache_salt="a")
    assert shared >= BLOCK
    await flush.side.complete(prompt(1, 400), cache_salt="a")
    body = {"model": "tiny", "messages": [SYSTEM], "add_generation_prompt": False}
    one = await flush(dry_run=True, prompt=body, salts=(salt_digest("a"),))
    both = await flush(prompt=body)
    assert both.blocks > one.blocks >= shared // BLOCK
    assert [await flush.chat("Who runs it?", cache_salt=salt) for salt in "ab"] == [0, 0]
    assert await flush.side.cached(prompt(1, 400), cache_salt="a") > 0
    await flush.sound()


async def test_blocks_of_a_running_request_stay_and_all_others_go(flush: Flushing) -> None:
    await flush.side.complete(prompt(1, 400))
    running = asyncio.create_task(flush.side.complete(prompt(2, 400), max_tokens=400))
    while not (await flush.stats())["running"]:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.01)
    answer = await flush(everything=True)
    assert answer.blocks >= 400 // BLOCK
    await running
    assert await flush.side.cached(prompt(1, 400)) == 0
    await flush(everything=True)
    assert (await flush.stats())["blocks_idle"] == 0
    await flush.sound()


async def test_the_fake_engine_flushes_as_the_real_one(flush: Flushing, vllm_server: VllmServer) -> None:
    sizes: dict[str, Any] = {"block_size": BLOCK, "num_blocks": OPTIONS.num_blocks}
    fake = FakeEngine(
        model="tiny", tokenizer=vllm_server.folder, api_key=OPTIONS.api_key, plugin=True, max_model_len=1024, **sizes
    )
    shared = prompt(3, 200)
    asks: list[dict[str, Any]] = [
        {"prompt": {"model": "tiny", "prompt": [*shared, *prompt(4, 100)]}},
        {"prompt": {"model": "tiny", "prompt": shared}, "salts": (salt_digest("a"),)},
        {"salts": (salt_digest("b"),), "dry_run": True},
        {"prompt": {"model": "tiny", "prompt": shared}},
        {"everything": True},
    ]
    async with fake:
        side = Side(fake.url, fake.events_endpoint, fake.replay_endpoint, flush.side.headers, flush.side.session)
        told = [await _told(Flushing(each), shared, asks) for each in (flush.side, side)]
    assert told[0] == told[1]
    assert [one.blocks for one in told[0]] == [6, 9, 9, 9, 11]


async def _told(flush: Flushing, shared: list[int], asks: list[dict[str, Any]]) -> list[Flushed]:
    for salt in "ab":
        for tail in (4, 5):
            await flush.side.complete([*shared, *prompt(tail, 100)], cache_salt=salt)
    await flush.side.complete(prompt(6, 370))
    return [await flush(**ask) for ask in asks]


async def test_a_prompt_that_cannot_be_meant_is_refused(flush: Flushing) -> None:
    assert await flush.refused(FlushAsk(prompt={"model": "tiny", "prompt": "short"})) == (422, "short_prompt")
    other = await flush.side.send(FLUSH_PATH, {"prompt": {"model": "other", "prompt": "x " * 100}})
    assert other.status == 404
    assert "other" in other.body["error"]["message"]
