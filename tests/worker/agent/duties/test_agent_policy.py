"""Policies, warm prefixes, health and draining of a whole agent, beside an engine with the plugin and without."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from cachefleet_core.engine.cache_flush import FLUSH_PATH, FlushAnswer, FlushAsk
from cachefleet_core.report_fields import SaltShare
from cachefleet_core.report_frames import Drain, Phase, Policy, Warm
from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.duties.policy_delivery import with_known_shares
from cachefleet_worker.agent.engines.engine_errors import EngineError
from cachefleet_worker.agent.engines.engine_poll import RankStats
from cachefleet_worker.agent.engines.vllm.http_client import EngineClient
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from tests.fakes.engine import FakeEngine
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.test_agent import Worker, prompt, working

pytestmark = pytest.mark.usefixtures("hurried")
Make = Callable[..., AgentSettings]
QUICK = {
    "warm_retry_seconds": 0.02,
    "warm_retry_cap_seconds": 0.1,
    "policy_retry_seconds": 0.02,
    "policy_file_seconds": 0.02,
}


def policy(generation: int, **fields: Any) -> Policy:
    return Policy(pool="default/demo", uid="u", generation=generation, **fields)


def chat(text: str) -> bytes:
    return msgspec.json.encode([{"role": "system", "content": text}])


def warm(*names: str, generation: int = 1, **fields: Any) -> Warm:
    prefixes = tuple(Prefix(name=name, messages=chat(f"{name} " * 40), **fields) for name in names)
    return Warm(prefixes=prefixes, standing=True, uid="u", generation=generation)


def write(file: Path, content: Policy | bytes) -> None:
    """As a supervisor does it: whole or not at all."""
    data = content if isinstance(content, bytes) else msgspec.json.encode(content)
    new = file.with_suffix(".new")
    new.write_bytes(data)
    os.replace(new, file)  # noqa: PTH105 (the same)


def test_a_file_that_knows_no_salts_leaves_tenants_shares_as_they_were_told() -> None:
    shares = (SaltShare(salt="0" * 32, share=0.25),)
    told = policy(2, tenant_shares=shares)
    assert with_known_shares(policy(3), told) == policy(3, tenant_shares=shares)
    assert with_known_shares(policy(3, tenant_shares=()), told) == policy(3, tenant_shares=())
    assert with_known_shares(policy(3), None) == policy(3)
    other = msgspec.structs.replace(told, uid="another pool of this name")
    assert with_known_shares(policy(3), other) == policy(3)


# What the plugin tells


async def test_the_plugin_is_asked_what_the_engine_is(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, plugin=True) as worker:
        hello = plane.hello
        assert hello is not None
        assert hello.epoch == worker.engine.plugin.boot
        assert (hello.block_bytes, hello.blocks_total) == (16_384, 199)
        modes = {each.feature: each.mode for each in hello.capabilities}
        assert (modes["events"], modes["replay"], modes["budget"]) == ("zmq", "zmq", "blocks")
        assert (modes["gate"], modes["snapshot"]) == ("in_loop", "off")
        assert worker.metric("capability", feature="budget", mode="blocks") == 1
        await worker.complete(prompt(0, 100))
        await plane.until(lambda: plane.state and plane.state.blocks_idle == 6)
        assert plane.state is not None
        assert plane.state.idle_by_salt == {"0" * 32: 6}
        assert (plane.state.waiting_tokens, plane.state.blocks_free) == (0, 199)
        before = hello.epoch
        await worker.engine.restart()
        await plane.until(lambda: len(plane.epochs) == 2)
        assert plane.hello is not None
        assert plane.hello.epoch == worker.engine.plugin.boot != before


async def test_another_boot_id_is_another_epoch_whatever_the_api_server_says(
    make_settings: Make, plane: ControlPlane
) -> None:
    async with working(make_settings, plane, plugin=True) as worker:
        worker.engine.plugin.boot = "b" * 32
        await plane.until(lambda: plane.epochs[-1] == "b" * 32)
        assert worker.metric("epochs_total", cause="boot") == 1


async def test_a_stock_engine_has_no_plugin(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane):
        assert plane.hello is not None
        assert plane.hello.block_bytes == 0
        assert ("plugin", "off") in {(each.feature, each.mode) for each in plane.hello.capabilities}
        assert plane.state is not None
        assert plane.state.blocks_idle is plane.state.waiting_tokens is None


async def test_routes_that_the_key_does_not_open_are_no_plugin(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, plugin=True, worker_key="another"):
        assert plane.hello is not None
        assert plane.hello.block_bytes == 0


# Policy


async def test_a_policy_is_in_force_when_the_engine_says_so(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, plugin=True, changes=QUICK) as worker:
        worker.engine.plugin.refuse_policies = 3
        await plane.send(policy(4, budget_mib=0))
        await plane.until(lambda: worker.metric("policies_total", outcome="failed") >= 1)
        assert plane.state is not None
        assert plane.state.generation == 0
        await plane.until(lambda: plane.state and plane.state.generation == 4)
        assert worker.engine.plugin.policies == [policy(4, budget_mib=0)]


async def test_a_smaller_budget_is_seen_in_what_is_reported(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, plugin=True, changes=QUICK, block_bytes=256 * 1024) as worker:
        await worker.complete(prompt(0, 200))
        await worker.whole()
        assert len(plane.receiver.keys) == 12
        await plane.send(policy(1, budget_mib=1))
        await plane.until(lambda: plane.state and plane.state.blocks_idle == 4)
        await worker.whole()
        assert len(plane.receiver.keys) == 4


async def test_a_new_life_of_the_engine_is_given_the_policy_again(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, plugin=True, changes=QUICK) as worker:
        await plane.send(policy(4))
        await plane.until(lambda: plane.state and plane.state.generation == 4)
        await worker.engine.restart()
        await plane.until(lambda: len(plane.epochs) == 2 and plane.state and plane.state.generation == 4)
        first, *again = worker.engine.plugin.policies
        assert first == policy(4)
        assert set(map(repr, again)) <= {repr(first)}, "one that was answered late may come twice"


async def test_a_policy_that_the_engine_lost_is_given_again(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, plugin=True, changes=QUICK) as worker:
        await plane.send(policy(4))
        await plane.until(lambda: plane.state and plane.state.generation == 4)
        worker.engine.plugin.policy = None
        await plane.until(lambda: len(worker.engine.plugin.policies) == 2)


async def test_a_later_policy_in_the_engine_stands(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, plugin=True, changes=QUICK) as worker:
        worker.engine.plugin.policy = policy(9)
        await plane.send(policy(4))
        await plane.until(lambda: plane.state and plane.state.generation == 9)
        await plane.next_state()
        assert worker.engine.plugin.policies == [policy(4)]


async def test_the_policy_file_is_followed(make_settings: Make, plane: ControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    write(file, policy(3, max_entries=2))
    async with working(make_settings, plane, plugin=True, changes=QUICK | {"policy_file": file}) as worker:
        await plane.until(lambda: plane.state and plane.state.generation == 3)
        write(file, b"{")
        shares = (SaltShare(salt="0" * 32, share=0.25),)
        await plane.send(policy(5, tenant_shares=shares))
        await plane.until(lambda: plane.state and plane.state.generation == 5)
        write(file, policy(4))
        await asyncio.sleep(0.1)  # the older policy is read in between
        write(file, policy(6, threshold=0.5))
        await plane.until(lambda: plane.state and plane.state.generation == 6)
        assert [each.generation for each in worker.engine.plugin.policies] == [3, 5, 6]
        assert worker.engine.plugin.policies[-1].tenant_shares == shares


@pytest.mark.requirement("C16")
async def test_what_is_in_force_is_logged(
    make_settings: Make, plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with working(make_settings, plane, plugin=True, changes=QUICK):
        await plane.send(policy(4, budget_mib=7, max_entries=3))
        await plane.until(lambda: plane.state and plane.state.generation == 4)
    [line] = [each for each in caplog.records if each.message == "prefix cache enabled for this model"]
    fields = line.__dict__
    assert (fields["model"], fields["budget_mb"], fields["max_entries"], fields["generation"]) == ("fake", 7, 3, 4)


# Warm prefixes


async def test_a_first_start_without_warm_prefixes_is_ready(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane) as worker:
        await plane.send(policy(1))
        await plane.send(warm())
        await plane.until(lambda: not worker.agent.unready)


@pytest.mark.requirement("C5")
async def test_traffic_waits_until_the_pool_is_warm(make_settings: Make, plane: ControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    write(file, policy(1, warm_prefixes=2))
    async with FakeEngine(api_key="key", num_blocks=200) as engine:
        settings = make_settings(engine_url=engine.url, control_planes=plane.url, policy_file=file, **QUICK)
        async with running(settings) as agent:
            await plane.until(lambda: plane.state and plane.state.phase is Phase.WARMING)
            assert plane.state is not None
            assert "warming" in plane.state.reason.split(",")
            assert agent.unready
            await plane.send(warm("a", "b", salts=("t1", "t2")))
            await plane.until(lambda: plane.state and plane.state.phase is Phase.READY)
            assert plane.state.warmth.done == plane.state.warmth.total == 4
            assert {salt for salt, _ in engine.held_chains()} == {"t1", "t2"}
            await plane.until(lambda: agent.unready == [])


async def test_traffic_waits_for_what_is_hot_too(make_settings: Make, plane: ControlPlane) -> None:
    """Prompts of a Warm that does not stand: a control plane sends them as soon as it hears of a new worker."""
    async with FakeEngine(api_key="key", num_blocks=400, prefill_tokens_per_second=400.0) as engine:
        settings = make_settings(engine_url=engine.url, control_planes=plane.url, **QUICK)
        async with running(settings) as agent:
            await plane.until(lambda: plane.state)
            hot = tuple(Prefix(name=f"hot-{n}", messages=chat(f"{n} " * 200)) for n in range(3))
            await plane.send(Warm(prefixes=hot))
            await plane.until(lambda: not agent.unready)
            assert agent.controller._warm_up.warmth.done == 3
            await engine.restart()
            await plane.until(lambda: len(plane.epochs) == 2)
            await plane.send(Warm(prefixes=hot))
            await plane.until(lambda: not agent.unready)
            assert agent.controller._warm_up.warmth.done == 3


async def test_prefixes_that_nobody_names_are_not_waited_for(make_settings: Make, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    write(file, policy(1, warm_prefixes=2))
    async with FakeEngine(api_key="key") as engine:
        changes = QUICK | {"policy_file": file, "registration_seconds": 0.5}
        settings = make_settings(engine_url=engine.url, control_planes="ws://127.0.0.1:9", **changes)
        async with running(settings) as agent:
            await ControlPlane().until(lambda: agent.phase is Phase.WARMING)
            await ControlPlane().until(lambda: agent.phase is Phase.READY and agent.unready == [])


@pytest.mark.requirement("C11")
async def test_what_fails_is_shown_and_repaired(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=QUICK) as worker:
        worker.engine.fail_next(503, count=3)
        await plane.send(warm("a", "b"))
        await plane.until(lambda: plane.state and plane.state.warmth.failed)
        assert plane.state is not None
        assert plane.state.warmth.total == 2
        await plane.until(lambda: plane.state and plane.state.warmth.done == 2)
        assert plane.state.warmth.failed == ()


async def test_a_worker_that_does_not_get_warm_takes_traffic_in_the_end(
    make_settings: Make, plane: ControlPlane, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    write(file, policy(1, warm_prefixes=1, warm_timeout_seconds=0.6))
    async with FakeEngine(api_key="key") as engine:
        settings = make_settings(engine_url=engine.url, control_planes=plane.url, policy_file=file, **QUICK)
        async with running(settings) as agent:
            worker = Worker(engine, agent, plane, agent.uplink._http)
            await plane.until(lambda: plane.state)
            engine.fail_next(503, count=10_000)
            await plane.send(warm("a"))
            await plane.until(lambda: plane.state and plane.state.warmth.failed)
            assert plane.state is not None
            assert plane.state.phase is Phase.WARMING
            await plane.until(lambda: plane.state and plane.state.phase is Phase.READY)
            await plane.until(lambda: plane.state and plane.state.reason == "warm_timeout")
            assert (await worker.get("/readyz"))[1]["note"] == "warm_timeout"
            engine._failures.clear()
            await plane.until(lambda: plane.state and plane.state.warmth.done == 1 and plane.state.reason == "")


async def test_a_prompt_that_the_engine_refuses_holds_nothing_up(
    make_settings: Make, plane: ControlPlane, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    write(file, policy(1, warm_prefixes=2))
    async with FakeEngine(api_key="key", num_blocks=20, block_size=16) as engine:
        settings = make_settings(engine_url=engine.url, control_planes=plane.url, policy_file=file, **QUICK)
        async with running(settings) as agent:
            await plane.until(lambda: plane.state)
            good = Prefix(name="good", messages=chat("x" * 100))
            too_long = Prefix(name="long", messages=chat("x" * 1000))
            await plane.send(Warm(prefixes=(too_long, good), standing=True, uid="u", generation=1))
            await plane.until(lambda: agent.phase is Phase.READY)
            await plane.until(lambda: plane.state and plane.state.reason == "warm_partial")
            assert plane.state is not None
            assert (plane.state.warmth.done, plane.state.warmth.failed) == (1, ("long",))


async def test_the_pool_is_warm_again_after_a_restart_and_a_clearing(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=QUICK) as worker:
        await plane.send(warm("a"))
        await plane.until(lambda: plane.state and plane.state.warmth.done == 1)
        await worker.whole()
        assert plane.receiver.keys
        await worker.engine.restart()
        await plane.until(lambda: len(plane.epochs) == 2 and plane.state and plane.state.warmth.done == 1)
        await plane.until(lambda: not worker.agent.unready)
        await worker.whole()
        assert plane.receiver.keys
        assert worker.engine.reset_prefix_cache()
        await worker.complete(prompt(0, 5))  # the event leaves with the next step
        await plane.until(lambda: worker.metric("warmed_prefixes_total", outcome="cached") == 3)
        await worker.whole()
        assert plane.receiver.keys
        assert "warming" not in worker.agent.unready


async def test_what_a_flush_took_of_warm_prefixes_is_cached_again(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, plugin=True, changes=QUICK) as worker:
        await plane.send(warm("a"))
        await plane.until(lambda: plane.state and plane.state.warmth.done == 1)
        await worker.whole()
        held = worker.engine.held()
        assert held
        assert await flush(worker.engine, FlushAsk(everything=True, dry_run=True)) == len(held)
        assert worker.engine.held() == held
        assert await flush(worker.engine, FlushAsk(everything=True)) == len(held)
        await plane.until(lambda: worker.metric("warmed_prefixes_total", outcome="cached") == 2)
        await worker.whole()
        assert worker.engine.held() == held
        assert "warming" not in worker.agent.unready


async def test_numbers_that_the_plugin_does_not_give_at_times_are_no_flush(
    make_settings: Make, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(make_settings, plane, plugin=True, changes=QUICK) as worker:
        await plane.send(warm("a"))
        await plane.until(lambda: plane.state and plane.state.warmth.done == 1)
        assert await flush(worker.engine, FlushAsk(everything=True)) > 0
        await plane.until(lambda: worker.metric("warmed_prefixes_total", outcome="cached") == 2)

        async def too_late(_: EngineClient) -> Mapping[int, RankStats]:
            raise EngineError("timed out")

        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(EngineClient, "fleet_stats", too_late)
                missed = worker.metric("engine_polls_total", outcome="no_stats")
                await plane.until(partial(_more, worker, missed))
            await plane.next_state()
            await plane.next_state()
        await worker.whole()
        assert worker.metric("warmed_prefixes_total", outcome="cached") == 2


async def flush(engine: FakeEngine, ask: FlushAsk) -> int:
    """The blocks that the engine's plugin says it has flushed."""
    headers = {"Authorization": f"Bearer {engine.options.worker_key or engine.options.api_key}"}
    async with aiohttp.ClientSession() as session:
        body = msgspec.json.encode(ask)
        async with session.post(engine.url + FLUSH_PATH, data=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            return msgspec.json.decode(await response.read(), type=FlushAnswer, strict=False).ranks[0].blocks


async def test_prefixes_that_the_pool_drops_are_not_tried_any_more(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=QUICK) as worker:
        worker.engine.fail_next(503, count=10_000)
        await plane.send(warm("a"))
        await plane.until(lambda: plane.state and plane.state.warmth.failed == ("a",))
        await plane.send(warm("b", generation=2))
        await plane.send(warm("a", generation=1))
        await plane.until(lambda: plane.state and plane.state.warmth.failed == ("b",))
        await plane.next_state()
        assert plane.state is not None
        assert plane.state.warmth.total == 1


async def test_warming_goes_past_the_gate(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=QUICK) as worker:
        await plane.send(warm("a"))
        await plane.until(lambda: plane.state and plane.state.warmth.done == 1)
        [asked] = [msgspec.json.decode(each.body) for each in worker.engine.requests if "chat" in each.path]
        assert asked["vllm_xargs"] == {"kv_cache_report_mode": "full", "cache_hit_threshold": 0}
        assert (asked["max_tokens"], asked["logprobs"]) == (1, True)


# Health


@pytest.mark.parametrize(("trouble", "finding"), [("corrupted", "engine_corrupted"), ("errors", "engine_erring")])
@pytest.mark.requirement("C12")
async def test_an_engine_that_is_not_to_be_trusted_is_withdrawn_until_it_is_started_anew(
    make_settings: Make, plane: ControlPlane, trouble: str, finding: str
) -> None:
    async with working(make_settings, plane, changes=QUICK | {"error_polls": 2}, nan_metric=True) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        await plane.until(lambda: not worker.agent.unready)
        while worker.agent.phase is not Phase.FAILED:
            worker.engine.end_badly(**{trouble: 1})
            await plane.next_state()
        await plane.until(lambda: not plane.receiver.keys and plane.state and plane.state.phase is Phase.FAILED)
        assert plane.state is not None
        assert plane.state.reason == finding
        assert (await worker.get("/readyz"))[1]["reasons"] == [finding]
        assert worker.metric("withdrawals_total", finding=finding) == 1
        await worker.complete(prompt(1, 100))
        await plane.next_state()
        await plane.next_state()
        assert not plane.receiver.keys
        await worker.engine.restart()
        await plane.until(lambda: len(plane.epochs) == 2 and plane.state and plane.state.phase is Phase.READY)
        await worker.complete(prompt(1, 100))
        await worker.whole()
        assert plane.receiver.keys


async def test_a_few_errors_between_answers_are_borne_with(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=QUICK | {"error_polls": 2}) as worker:
        for seed in range(6):
            worker.engine.end_badly(errors=1)
            await worker.complete(prompt(seed, 10))
            await plane.next_state()
        assert worker.agent.phase is Phase.READY


# Draining


@pytest.mark.parametrize(("after_drain", "ends"), [("exit", True), ("stay", False)])
async def test_a_drain_that_is_asked_for_lets_running_requests_end(
    make_settings: Make,
    plane: ControlPlane,
    after_drain: str,
    ends: bool,  # noqa: FBT001 (a row)
) -> None:
    async with FakeEngine(api_key="key", inter_token_seconds=0.02) as engine:
        settings = make_settings(engine_url=engine.url, control_planes=plane.url, after_drain=after_drain)
        async with running(settings) as agent:
            worker = Worker(engine, agent, plane, agent.uplink._http)
            await plane.until(lambda: plane.state and plane.state.phase is Phase.READY)
            request = asyncio.create_task(worker.complete(prompt(0, 100), max_tokens=40, ignore_eos=True))
            await plane.until(lambda: plane.state and plane.state.running == 1)
            await plane.send(Drain(seconds=30.0))
            await plane.until(lambda: plane.state and plane.state.phase is Phase.DRAINING)
            assert not agent.controller.drained()
            await request
            await plane.until(agent.controller.drained)
            if ends:
                await plane.until(lambda: not plane._sockets)
            else:
                await plane.next_state()
                assert plane.state is not None
                assert plane.state.phase is Phase.DRAINING


@pytest.mark.parametrize("plugin", [False, True])
async def test_a_warm_prefix_that_can_never_fit_is_told_with_tokens_and_limit(
    make_settings: Make, plane: ControlPlane, *, plugin: bool
) -> None:
    async with working(make_settings, plane, changes=QUICK, plugin=plugin) as worker:
        longest = worker.engine.options.context
        await plane.send(Warm(prefixes=(Prefix(name="a", messages=chat("x" * 2 * longest)),), standing=True, uid="u"))
        await plane.until(lambda: plane.state and plane.state.warmth.problems)
        assert plane.state is not None
        (problem,) = plane.state.warmth.problems
        assert (problem.kind, problem.limit, problem.detail) == ("too_long", longest - 1, "engine.maxModelLen")
        assert problem.tokens > 2 * longest


async def test_a_warm_prefix_beyond_the_budget_is_told_until_there_is_room(
    make_settings: Make, plane: ControlPlane
) -> None:
    async with working(make_settings, plane, changes=QUICK, plugin=True) as worker:
        await plane.send(policy(1, budget_mib=1, warm_prefixes=1))
        await plane.send(Warm(prefixes=(Prefix(name="a", messages=chat("x" * 1100)),), standing=True, uid="u"))
        await plane.until(lambda: plane.state and plane.state.warmth.problems)
        assert plane.state is not None
        (problem,) = plane.state.warmth.problems
        limit = (1 << 20) // 16_384 * worker.engine.options.block_size + worker.engine.options.block_size - 1
        assert (problem.kind, problem.limit, problem.detail) == ("too_long", limit, "prefixCache.budgetMiB")
        await plane.send(policy(2, budget_mib=3, warm_prefixes=1))
        await plane.until(lambda: plane.state and plane.state.warmth.done == 1)
        assert plane.state.warmth.problems == ()


def _more(worker: Worker, missed: float) -> bool:
    """Whether another poll gave no numbers."""
    return worker.metric("engine_polls_total", outcome="no_stats") > missed
