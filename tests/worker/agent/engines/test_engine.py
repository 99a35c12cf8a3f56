"""What every engine has to do, by the Protocol alone: vLLM, stock and with the plugin, and one that has no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import msgspec
import pytest

from cachefleet_core.block_keys import BlockKey, BlockKeyer, Namespace
from cachefleet_core.report_frames import Phase, Policy, Warm
from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.engine import EngineProcess
from cachefleet_worker.agent.engines.engine_errors import EngineError, EngineRefusalError, EngineUnreachableError
from cachefleet_worker.agent.engines.engine_facts import EngineFacts
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.settings import AgentSettings
from tests.worker.agent.engines.implementations import Implementation, in_memory, vllm
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.model import CONTRACT, INDEX_KEY
from tests.worker.agent.receiver import Receiver

pytestmark = pytest.mark.usefixtures("hurried")
Make = Callable[..., AgentSettings]
IMPLEMENTATIONS = [
    pytest.param(in_memory, id="in-memory"),
    pytest.param(vllm, id="vllm"),
    pytest.param(partial(vllm, plugin=True), id="vllm-with-plugin"),
]
until = ControlPlane().until
TOKENS = [number % 200 for number in range(40)]


@pytest.fixture(params=IMPLEMENTATIONS)
def begin(request: pytest.FixtureRequest, make_settings: Make) -> Callable[..., Any]:
    """Begins one of the implementations."""
    return partial(request.param, make_settings)


@pytest.fixture
async def running(begin: Callable[..., Any]) -> AsyncIterator[Implementation]:
    async with begin() as implementation:
        yield implementation


def ids(tokens: list[int], **fields: Any) -> Prefix:
    return Prefix(name="p", ids=b"".join(token.to_bytes(4, "little") for token in tokens), **fields)


def chat(text: str) -> Prefix:
    return Prefix(name="m", messages=msgspec.json.encode([{"role": "user", "content": text}]))


def keyer(facts: EngineFacts, contract: str, salt: str = "") -> BlockKeyer:
    rank = facts.ranks[0]
    return BlockKeyer(INDEX_KEY, Namespace(contract, salt), rank.block_size, rank.lookahead or 0)


class Followed:
    """The blocks of a process, as its event source gives them."""

    def __init__(self, process: EngineProcess) -> None:
        rank = process.facts.ranks[0]
        self.residents = Residents(
            INDEX_KEY, CONTRACT, block_size=rank.block_size, lookahead=rank.lookahead or 0, groups=rank.groups
        )
        self.receiver = Receiver()
        self.restarts: list[str] = []
        source = process.event_source(0, self.residents, changed=self._changed, restarted=self.restarts.append)
        assert source is not None
        self._run = source.run

    def _changed(self) -> None:
        self.receiver.apply(self.residents.take())

    @property
    def keys(self) -> set[BlockKey]:
        return self.receiver.keys

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_process_is_known_by_its_facts_and_another_one_is_told_from_it(running: Implementation) -> None:
    process = await running.engine.connect()
    facts = process.facts
    assert facts == (await running.engine.connect()).facts
    assert all((facts.engine, facts.version, facts.model, facts.root, facts.tokenizer, facts.process))
    assert facts.max_model_len == 512
    assert facts.ranks[0].block_size == 4
    assert facts.ranks[0].blocks > 0
    assert next(each.feature for each in facts.ranks[0].transport) == "events"
    assert facts.endpoints is None or {"/v1/chat/completions", "/tokenize"} <= set(facts.endpoints)
    assert (await process.poll()).process == facts.process
    await running.crash()
    await asyncio.sleep(0.05)
    await running.start()
    other = (await running.engine.connect()).facts
    assert (other.process, other.boot) != (facts.process, facts.boot)
    assert other.process == (await process.poll()).process


async def test_an_engine_that_is_gone_is_unreachable_for_every_call(running: Implementation) -> None:
    engine = running.engine
    process = await engine.connect()
    await running.crash()
    calls: list[Callable[[], Any]] = [
        engine.connect,
        process.poll,
        lambda: engine.policies.put_policy(Policy(pool="default/demo", generation=1)),
        lambda: engine.prompts.cache_prompt(process.facts.model, ids(TOKENS), again=True, timeout_seconds=5, rank=None),
    ]
    for call in calls:
        with pytest.raises(EngineUnreachableError):
            await call()


async def test_a_poll_shows_each_rank(running: Implementation) -> None:
    process = await running.engine.connect()
    idle = await process.poll()
    assert [(idle.ranks[0].running, idle.ranks[0].waiting), idle.paused, idle.silent] == [(0, 0), False, False]
    assert not idle.ranks[0].asleep
    assert all(stats.boot == process.facts.ranks[rank].boot for rank, stats in idle.stats.items())


async def test_held_blocks_follow_the_engines_events(running: Implementation) -> None:
    process = await running.engine.connect()
    truth = partial(running.held_keys, partial(keyer, process.facts, CONTRACT))
    await running.generate(TOKENS[:20])
    followed = Followed(process)
    async with followed.running():
        await until(lambda: followed.keys == truth() != set())
        await running.generate(TOKENS)
        await running.generate(TOKENS[:30], "salt")
        await until(lambda: followed.keys == truth())
        assert len(followed.keys) >= 17
        assert not followed.restarts
        await running.clear()
        await until(lambda: followed.keys == truth() == set())


async def test_a_source_tells_of_a_process_that_may_be_another_one(running: Implementation) -> None:
    followed = Followed(await running.engine.connect())
    async with followed.running():
        await running.generate(TOKENS)
        await until(lambda: followed.keys)
        await running.crash()
        await until(lambda: followed.restarts)
        held = followed.keys
        await running.start()
        await running.generate([7] * 40)
        assert followed.keys == held


async def test_an_engine_without_events_has_no_source(begin: Callable[..., Any]) -> None:
    async with begin(publishes=False) as running:
        process = await running.engine.connect()
        residents = Residents(INDEX_KEY, CONTRACT, block_size=4)
        assert process.event_source(0, residents, changed=lambda: None, restarted=lambda _: None) is None


async def test_a_prompt_is_run_for_its_cache(running: Implementation) -> None:
    process = await running.engine.connect()
    run = partial(running.engine.prompts.cache_prompt, process.facts.model, again=True, timeout_seconds=5.0, rank=None)
    first = await run(ids(TOKENS, salt="s"))
    assert (first.prompt_tokens, first.cached_tokens, first.unfinished) == (40, 0, False)
    assert first.logprobs
    assert set(keyer(process.facts, CONTRACT, "s").keys(TOKENS)) == running.held_keys(
        partial(keyer, process.facts, CONTRACT)
    )
    assert (await run(ids(TOKENS, salt="s"))).cached_tokens >= 36
    assert (await run(ids(TOKENS, salt="t"))).cached_tokens == 0
    messages = chat("x" * 60)
    assert (await run(messages)).prompt_tokens == await running.engine.prompts.count_tokens(
        process.facts.model, messages
    )


async def test_a_prompt_that_does_not_fit_is_refused_and_counted(running: Implementation) -> None:
    process, prompts = await running.engine.connect(), running.engine.prompts
    long = chat("x" * 600)
    with pytest.raises(EngineRefusalError):
        await prompts.cache_prompt(process.facts.model, long, again=True, timeout_seconds=5.0, rank=None)
    assert await prompts.count_tokens(process.facts.model, long) >= 600
    with pytest.raises(ValueError, match="neither"):
        await prompts.count_tokens(process.facts.model, Prefix(name="p"))


async def test_adapters_are_loaded_and_unloaded(running: Implementation) -> None:
    adapters = running.engine.adapters
    assert await adapters.served() == {}
    await adapters.load("sql", "/a")
    assert await adapters.served() == (await running.engine.connect()).facts.adapters == {"sql": "/a"}
    with pytest.raises(EngineError, match="/missing/b") as refused:
        await adapters.load("chat", "/missing/b")
    assert "\n" not in str(refused.value)
    await adapters.unload("sql")
    await adapters.unload("sql")
    assert await adapters.served() == {}


async def test_a_policy_is_in_force_where_the_engine_takes_one(running: Implementation) -> None:
    facts, policy = (await running.engine.connect()).facts, Policy(pool="default/demo", generation=3)
    if not facts.takes_policy:
        with pytest.raises(EngineError):
            await running.engine.policies.put_policy(policy)
        return
    assert await running.engine.policies.put_policy(policy) == dict.fromkeys(facts.ranks, 3)


async def test_an_agent_reports_the_engines_blocks_and_facts(
    running: Implementation, make_settings: Make, plane: ControlPlane
) -> None:
    async with aiohttp.ClientSession() as http:
        agent = Agent(make_settings(control_planes=plane.url), running.engine, AgentMetrics(), http)
        task = asyncio.create_task(agent.run())
        try:
            await plane.until(lambda: plane.state and plane.state.phase is Phase.READY)
            await _reports(running, plane)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _reports(running: Implementation, plane: ControlPlane) -> None:
    facts, hello = (await running.engine.connect()).facts, plane.hello
    assert hello is not None
    assert (hello.engine_version, hello.profile.renderer) == (facts.version, facts.engine)
    assert (hello.contract.block_size, hello.blocks_total) == (4, facts.ranks[0].blocks)
    contract = hello.contract.fingerprint()
    truth = partial(running.held_keys, partial(keyer, facts, contract))
    await running.generate(TOKENS, "a")
    await plane.until(lambda: plane.receiver.keys == truth() != set())
    await plane.send(Policy(pool="default/demo", uid="u", generation=2))
    await plane.send(Warm(prefixes=(ids([9] * 16),), standing=True, uid="u", generation=1))
    await plane.until(lambda: plane.state and (plane.state.generation, plane.state.warmth.done) == (2, 1))
    await plane.holds(keyer(facts, contract).keys([9] * 16))
    before = plane.epochs[-1]
    await running.crash()
    await plane.until(lambda: not plane.receiver.keys)
    await running.start()
    await plane.until(lambda: plane.epochs[-1] != before and plane.state and plane.state.phase is Phase.READY)
    await plane.until(lambda: plane.receiver.keys == truth() != set())
