"""The whole agent in this process, between a fake engine and a control plane's end of the protocol."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import cachefleet_native
import msgspec
import pytest

from cachefleet_core.block_keys import BlockKey, BlockKeyer, Namespace
from cachefleet_core.index_contract import Difference
from cachefleet_core.native import native_code
from cachefleet_core.report_frames import Drain, Phase, Policy, Warm
from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from tests.fakes.engine import FakeEngine
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.model import INDEX_KEY

pytestmark = pytest.mark.usefixtures("hurried")
Make = Callable[..., AgentSettings]


def prompt(seed: int, length: int) -> list[int]:
    """Tokens of the fake engine's vocabulary; a longer prompt of the same seed begins with a shorter one."""
    rng = random.Random(seed)
    return [rng.randrange(200) for _ in range(length)]


class Worker:
    """A fake engine with its agent, and what a client would do with them."""

    def __init__(self, engine: FakeEngine, agent: Agent, plane: ControlPlane, http: aiohttp.ClientSession) -> None:
        self.engine, self.agent, self.plane, self._http = engine, agent, plane, http

    async def complete(self, tokens: list[int], salt: str = "", **fields: Any) -> dict[str, Any]:
        body = {"model": "fake", "prompt": tokens, "max_tokens": 1} | ({"cache_salt": salt} if salt else {}) | fields
        headers = {"Authorization": "Bearer key"}
        async with self._http.post(self.engine.url + "/v1/completions", json=body, headers=headers) as response:
            assert response.status == 200
            return dict(await response.json())

    def truth(self) -> set[BlockKey]:
        hello = self.plane.hello
        assert hello is not None
        contract, fingerprint = hello.contract, hello.contract.fingerprint()
        return self.engine.held_keys(
            lambda salt: BlockKeyer(INDEX_KEY, Namespace(fingerprint, salt), contract.block_size, contract.lookahead)
        )

    async def whole(self, seconds: float = 30.0) -> None:
        """Wait until what is reported is exactly what the engine holds."""
        await self.plane.until(lambda: self.plane.receiver.keys == self.truth(), seconds)

    def metric(self, name: str, **labels: str) -> float:
        return self.agent.metrics.registry.get_sample_value(f"cachefleet_agent_{name}", labels) or 0.0

    def stream(self, what: str) -> float:
        return self.metric("stream_total", rank="0", what=what)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._http.get(f"http://127.0.0.1:{self.agent.http_port}{path}") as response:
            text = await response.text()
            return response.status, msgspec.json.decode(text) if path != "/metrics" else text


@asynccontextmanager
async def working(
    make_settings: Make, plane: ControlPlane, *, changes: Any = None, **options: Any
) -> AsyncIterator[Worker]:
    defaults: dict[str, Any] = {"api_key": "key", "num_blocks": 200, "block_size": 16}
    async with FakeEngine(**(defaults | options)) as engine, aiohttp.ClientSession() as http:
        settings = make_settings(engine_url=engine.url, control_planes=plane.url, **(changes or {}))
        async with running(settings) as agent:
            worker = Worker(engine, agent, plane, http)
            await plane.until(lambda: plane.state and plane.state.phase is Phase.READY)
            yield worker


@pytest.mark.parametrize("form", [{}, {"event_maps": False}, {"event_int_hashes": False}])
async def test_what_the_engine_holds_is_reported(
    make_settings: Make, plane: ControlPlane, form: dict[str, Any]
) -> None:
    async with working(make_settings, plane, **form) as worker:
        for salt in ("", "a", "b"):
            await worker.complete(prompt(0, 100), salt)
        await worker.complete([*prompt(0, 50), *prompt(500, 100)], "a")
        await worker.whole()
        assert len(plane.receiver.keys) >= 18


async def test_reports_are_computed_in_native_code(
    make_settings: Make, plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with working(make_settings, plane) as worker:
        await worker.complete(prompt(0, 100), "a")
        await worker.whole()
        [stream] = worker.agent.feed.streams.values()
        assert type(stream.residents._keyers.of("a", "").plain) is native_code().keyer
        assert type(stream.residents._digest) is cachefleet_native.Digest
        await plane.until(lambda: plane.state and plane.state.digest == plane.receiver.digest != 0)
    assert any("block keys by cachefleet_native " in message for message in caplog.messages)


@pytest.mark.parametrize("lookahead", [1, 3])
async def test_blocks_whose_hashes_look_ahead_are_reported_as_the_plugin_tells_of_them(
    make_settings: Make, plane: ControlPlane, lookahead: int
) -> None:
    async with working(make_settings, plane, plugin=True, lookahead=lookahead) as worker:
        shared = prompt(0, 96)  # whole blocks, after which two prompts part
        await worker.complete([*shared, 1, 2, 3], "a")
        await worker.complete([*shared, 4, 5, 6], "a")
        await worker.whole()
        assert plane.hello is not None
        assert (plane.hello.contract.lookahead, plane.hello.contract.key_version) == (lookahead, 2)
        assert len(plane.receiver.keys) == 7, "the last block of both is held twice: what follows it is not the same"
        assert worker.metric("epochs_total", cause="lookahead") == 0


async def test_a_stock_engines_lookahead_is_learnt_from_its_events(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, lookahead=1) as worker:
        assert plane.hello is not None
        assert plane.hello.contract.lookahead == 0
        await worker.complete(prompt(0, 100), "a")
        await plane.until(lambda: plane.hello and plane.hello.contract.lookahead == 1)
        await worker.whole()
        assert len(plane.receiver.keys) == 6
        assert worker.metric("epochs_total", cause="lookahead") == 1
        await worker.complete(prompt(7, 100), "b")
        await worker.whole()
        assert worker.metric("epochs_total", cause="lookahead") == 1, "known now"
        await worker.engine.restart()  # another engine, which may be started otherwise
        await plane.until(lambda: plane.hello and plane.hello.contract.lookahead == 0)


async def test_an_engine_that_is_not_as_asked_is_reported_and_logged(
    make_settings: Make, plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    asked = '{"served_model_name":"fake","block_size":32,"enable_prefix_caching":true,"num_gpu_blocks_override":0}'
    async with working(make_settings, plane, changes={"asked": asked}) as worker:
        hello = worker.plane.hello

    assert hello is not None
    differs = (Difference("block_size", "32", "16"), Difference("num_gpu_blocks_override", "0", "200"))
    assert hello.configuration == differs
    logged = [record for record in caplog.records if record.message == "the engine is not as asked"]
    assert [(each.field, each.expected, each.actual) for each in logged] == [  # type: ignore[attr-defined]
        ("block_size", "32", "16"),
        ("num_gpu_blocks_override", "0", "200"),
    ]


async def test_evictions_are_reported(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, num_blocks=20) as worker:
        for start in range(0, 4000, 200):
            await worker.complete(prompt(start, 150))
        await worker.whole()
        assert 0 < len(plane.receiver.keys) <= 19
        assert worker.metric("events_total", rank="0", outcome="removed") > 0


async def test_lost_events_are_fetched(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes={"probe_seconds": 3600}) as worker:  # nothing else finds the gap
        await worker.complete(prompt(0, 100))
        worker.engine.drop_events(3)
        for start in range(1000, 8000, 1000):
            await worker.complete(prompt(start, 100))
        await worker.whole()
        assert worker.stream("gaps") >= 1
        assert worker.stream("losses") == 0


async def test_a_silent_tail_is_fetched(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes={"probe_seconds": 0.2}) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        worker.engine.drop_events(100)
        await worker.complete(prompt(1000, 100))
        await worker.whole()
        assert worker.stream("gaps") == 0


async def test_events_lost_for_good_leave_a_sound_subset(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, num_blocks=30) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        worker.engine.drop_events(2, lose=True)
        for start in range(1000, 4000, 300):
            await worker.complete(prompt(start, 100))
        await plane.until(lambda: worker.stream("losses") == 1 and plane.receiver.keys)
        await plane.until(lambda: plane.receiver.keys <= worker.truth())
        await worker.complete(prompt(5000, 100))
        await plane.next_state()
        await plane.until(lambda: plane.receiver.keys <= worker.truth())


async def test_a_late_start_is_a_sound_subset(make_settings: Make, plane: ControlPlane) -> None:
    async with FakeEngine(api_key="key", num_blocks=200, buffer_steps=3) as engine, aiohttp.ClientSession() as http:
        for start in range(0, 2000, 200):
            body = {"model": "fake", "prompt": prompt(start, 100), "max_tokens": 1}
            async with http.post(
                engine.url + "/v1/completions", json=body, headers={"Authorization": "Bearer key"}
            ) as answer:
                assert answer.status == 200
        async with running(make_settings(engine_url=engine.url, control_planes=plane.url)) as agent:
            worker = Worker(engine, agent, plane, http)
            await plane.until(lambda: plane.receiver.keys)
            assert plane.receiver.keys < worker.truth()
            assert worker.stream("late_starts") == 1


async def test_a_crash_withdraws_everything_and_a_return_is_a_new_epoch(
    make_settings: Make, plane: ControlPlane
) -> None:
    async with working(make_settings, plane) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        await plane.until(lambda: not worker.agent.unready)
        await worker.engine.crash()
        await plane.until(lambda: not plane.receiver.keys and plane.state and plane.state.phase is Phase.STARTING)
        assert (await worker.get("/readyz")) == (
            503,
            {"ready": False, "phase": "starting", "reasons": ["engine_lost"]},
        )
        await worker.engine.start()
        await plane.until(lambda: len(plane.epochs) == 2 and plane.state and plane.state.phase is Phase.READY)
        assert len(set(plane.epochs)) == 2
        await worker.complete(prompt(0, 100))
        await worker.whole()
        assert plane.receiver.keys
        assert plane.connects == 1


async def test_an_engine_s_absence_is_told_once_and_so_is_its_return(
    make_settings: Make, plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(make_settings, plane) as worker:
        await worker.complete(prompt(0, 100))
        caplog.set_level("INFO", logger="cachefleet_worker")
        caplog.clear()
        await worker.engine.crash()
        await plane.until(lambda: worker.agent.epoch is None)
        await asyncio.sleep(20)
        await worker.engine.start()
        await plane.until(lambda: len(plane.epochs) == 2 and plane.state and plane.state.phase is Phase.READY)
    loud = [record.message for record in caplog.records if record.levelname != "INFO"]
    assert set(loud) <= {"engine does not answer"}
    assert len(loud) <= 1
    assert caplog.messages.count("epoch begins") == 1
    why = [getattr(record, "error", "") for record in caplog.records if record.message == "waiting for the engine"]
    assert why
    # On a slow machine it may be late before it is there: each reason is told as it changes.
    assert all(one != other for one, other in itertools.pairwise(why))


async def test_a_quick_restart_is_a_new_epoch(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        await worker.engine.restart()
        await plane.until(lambda: len(plane.epochs) >= 2)
        await worker.complete(prompt(200, 100))
        await worker.whole()


async def test_a_hanging_engine_keeps_its_epoch(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes={"engine_timeout_seconds": 0.2}) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        worker.engine.hang()
        await plane.until(lambda: plane.state and plane.state.phase is Phase.FAILED)
        assert plane.receiver.keys
        worker.engine.resume()
        await plane.until(lambda: plane.state and plane.state.phase is Phase.READY)
        assert len(plane.epochs) == 1


async def test_load_is_reported(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, prefill_tokens_per_second=5000.0, inter_token_seconds=0.005) as worker:
        for start in range(0, 5000, 1000):
            await worker.complete(prompt(start, 300), max_tokens=8)
            await plane.next_state()
        running_now = asyncio.create_task(worker.complete(prompt(0, 100), max_tokens=64, ignore_eos=True))
        await plane.until(lambda: plane.state and plane.state.running == 1)
        await running_now
        state = await plane.next_state()
        assert state.prefill_tokens_per_second is not None
        assert 0 < state.prefill_tokens_per_second < 40_000
        assert state.inter_token_seconds is not None
        assert 0.0025 < state.inter_token_seconds < 1.0, "a machine with other work is slower, never quicker"
        assert state.blocks_total == 199
        assert state.prefix_queries > 0


async def test_a_policy_is_kept_and_its_generation_reported(
    make_settings: Make, plane: ControlPlane, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    file.write_bytes(msgspec.json.encode(Policy(pool="default/demo", uid="u", generation=3)))
    async with working(make_settings, plane, changes={"policy_file": file}):
        assert plane.state is not None
        assert plane.state.generation == 3
        for generation in (5, 4):
            await plane.send(Policy(pool="default/demo", uid="u", generation=generation))
        await plane.send(Policy(pool="default/other", uid="u", generation=9))
        await plane.until(lambda: plane.state and plane.state.generation == 5)
        await plane.next_state()
        assert plane.state.generation == 5


async def test_prompts_are_cached_on_request(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane) as worker:
        messages = msgspec.json.encode([{"role": "user", "content": "hello " * 40}])
        ids = b"".join(n.to_bytes(4, "little") for n in range(100))
        await plane.send(
            Warm(
                prefixes=(
                    Prefix(name="chat", messages=messages, salt="a"),
                    Prefix(name="ids", ids=ids),
                    Prefix(name="broken", messages=b"{}"),
                    Prefix(name="empty"),
                )
            )
        )
        await plane.until(lambda: plane.state and plane.state.warmth.done == 2 and len(plane.state.warmth.failed) == 2)
        assert plane.state is not None
        assert plane.state.warmth.total == 4
        assert plane.state.warmth.failed == ("broken", "empty")
        await worker.whole()
        assert {salt for salt, _ in worker.engine.held_chains()} == {"a", ""}
        await worker.engine.restart()
        await plane.until(lambda: len(plane.epochs) == 2 and plane.state and plane.state.warmth.total == 0)


async def test_draining_is_said_and_ends_when_the_engine_is_idle(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, inter_token_seconds=0.02) as worker:
        request = asyncio.create_task(worker.complete(prompt(0, 100), max_tokens=64, ignore_eos=True))
        await plane.until(lambda: plane.state and plane.state.running == 1 and worker.agent.registration.registered)
        await plane.send(Drain(seconds=30.0))
        await plane.until(lambda: plane.state and plane.state.phase is Phase.DRAINING)
        status, body = await worker.get("/readyz")
        assert (status, body["reasons"]) == (503, ["draining"])
        await asyncio.wait_for(worker.agent.drained(), 40)
        assert request.done() or plane.state is not None
        await request


async def test_readiness_waits_for_a_control_plane(make_settings: Make) -> None:
    async with FakeEngine(api_key="key") as engine:
        settings = make_settings(engine_url=engine.url, control_planes="ws://127.0.0.1:9", registration_seconds=0.6)
        async with running(settings) as agent:
            await ControlPlane().until(lambda: agent.phase is Phase.WARMING)  # it may yet be told what is hot
            assert agent.unready == ["warming", "control_plane_not_reached"]
            await ControlPlane().until(lambda: agent.phase is Phase.READY and agent.unready == [])


async def test_how_long_its_engine_took_to_load_does_not_count_as_waiting(make_settings: Make) -> None:
    """Only then is there something to say to a control plane, which may name what is to be warm."""
    async with FakeEngine(api_key="key") as engine:
        await engine.crash()
        settings = make_settings(engine_url=engine.url, control_planes="ws://127.0.0.1:9", registration_seconds=2.0)
        async with running(settings) as agent:
            await asyncio.sleep(2.5)  # longer than registration_seconds
            assert agent.unready == ["engine_starting", "control_plane_not_reached"]
            await engine.start()
            await ControlPlane().until(lambda: agent.phase is Phase.WARMING)
            assert agent.unready == ["warming", "control_plane_not_reached"]
            await ControlPlane().until(lambda: agent.phase is Phase.READY and agent.unready == [])


async def test_metrics_and_health_are_served(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        assert (await worker.get("/healthz")) == (200, {"status": "ok"})
        await plane.until(lambda: not worker.agent.unready)
        assert (await worker.get("/readyz"))[1]["ready"] is True
        status, text = await worker.get("/metrics")
        assert status == 200
        assert f'cachefleet_agent_held_blocks{{rank="0"}} {float(len(plane.receiver.keys))}' in text
        assert "cachefleet_agent_ready 1.0" in text


async def test_nothing_secret_is_logged(
    make_settings: Make, plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with working(make_settings, plane) as worker:
        await worker.complete(prompt(0, 100), "the-salt")
        messages = msgspec.json.encode([{"role": "user", "content": "the-prompt"}])
        await plane.send(Warm(prefixes=(Prefix(name="p", messages=messages, salt="the-salt"),)))
        await worker.engine.restart()
        await plane.until(lambda: len(plane.epochs) == 2)
        _, text = await worker.get("/metrics")
    said = text + str([record.__dict__ for record in caplog.records if record.name.startswith("cachefleet")])
    assert "epoch begins" in said
    for secret in ("the-salt", "the-prompt", str(prompt(0, 100))[1:20], "Bearer"):
        assert secret not in said


async def test_an_engine_that_refuses_the_key_is_told_until_it_takes_it(make_settings: Make) -> None:
    plane = ControlPlane()
    async with FakeEngine(api_key="another") as engine:
        settings = make_settings(engine_url=engine.url, key_refusals=1_000_000)
        async with running(settings) as agent:
            await plane.until(lambda: "engine_refuses_key" in agent.unready)
            assert agent.phase is Phase.FAILED
            engine.options = replace(engine.options, api_key="key")
            await plane.until(lambda: agent.phase is Phase.READY and "engine_refuses_key" not in agent.unready)
