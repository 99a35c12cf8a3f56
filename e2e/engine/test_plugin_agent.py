"""The agent beside real vLLM with the plugin: policies in force, prefixes kept warm, conversations ended."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from cachefleet_core.continuation import CONVERSATION_HEADER
from cachefleet_core.engine.engine_arguments import ENVIRONMENT
from cachefleet_core.report_frames import Phase, Policy, Warm
from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm
from tests.worker.agent.fake_control_plane import ControlPlane

OPTIONS: Final = VllmOptions(plugin=True, num_blocks=256)
BLOCK: Final = 32
POOL: Final = "default/agent"
GREEDY: Final = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
MADE: Final = {
    "model": "tiny",
    "tokenizer_fingerprint": "",
    "renderer": "vllm",
    "renderer_version": "",
    "template_fingerprint": "",
    "effective_instructions_hash": "",
    "effective_tools_hash": "",
}

on_engine = pytest.mark.parametrize("vllm_server", [OPTIONS], indirect=True)


class Desk:
    """A running agent, its engine, and what a control plane would do with both."""

    def __init__(self, server: VllmServer, agent: Agent, plane: ControlPlane, http: aiohttp.ClientSession) -> None:
        self.agent, self.plane = agent, plane
        self._server, self._http = server, http

    async def engine(self, path: str, body: dict[str, Any]) -> Any:
        async with self._http.post(self._server.url + path, json=body, headers=self._server.headers) as response:
            assert response.status == 200, await response.text()
            return await response.json(content_type=None)

    async def models(self) -> Any:
        async with self._http.get(self._server.url + "/v1/models", headers=self._server.headers) as response:
            return await response.json()

    async def kept(self, messages: list[dict[str, str]]) -> str:
        """The handle of a conversation that the plugin keeps."""
        body = {"model": "tiny", "messages": messages, "max_tokens": 1}
        headers = {CONVERSATION_HEADER: json.dumps(MADE), **self._server.headers}
        async with self._http.post(self._server.url + "/v1/chat/completions", json=body, headers=headers) as response:
            return str(json.loads(response.headers[CONVERSATION_HEADER])["handle"])

    async def turns(self) -> int:
        """How many turns of conversations the plugin keeps."""
        async with self._http.get(self._server.url + "/v1/fleet/stats", headers=self._server.headers) as response:
            return int((await response.json())["conversations"]["turns"])

    async def generate(self, ids: list[int], salt: str) -> list[int]:
        body = {"model": "tiny", "token_ids": ids, "sampling_params": GREEDY, "cache_salt": salt}
        return list((await self.engine("/inference/v1/generate", body))["choices"][0]["token_ids"])


@pytest.fixture
def agent_settings(tmp_path: Path) -> Callable[[VllmServer], dict[str, Any]]:
    def make(server: VllmServer) -> dict[str, Any]:
        (tmp_path / "index.key").write_text(base64.urlsafe_b64encode(bytes(range(32))).decode())
        (tmp_path / "worker.key").write_text(server.options.api_key)
        return {
            "worker": "agent-0",
            "pool": POOL,
            "engine_url": server.url,
            "index_key_file": tmp_path / "index.key",
            "worker_key_file": tmp_path / "worker.key",
            "http_host": "127.0.0.1",
            "http_port": 0,
            "poll_seconds": 0.2,
        }

    return make


@pytest.fixture
def settings(vllm_server: VllmServer, agent_settings: Callable[[VllmServer], dict[str, Any]]) -> dict[str, Any]:
    return agent_settings(vllm_server)


@pytest.fixture
async def desk(vllm_server: VllmServer, settings: dict[str, Any]) -> AsyncIterator[Desk]:
    async with (
        ControlPlane() as plane,
        aiohttp.ClientSession() as http,
        running(AgentSettings(control_planes=plane.url, **settings)) as agent,
    ):
        await plane.until(lambda: plane.state and plane.state.phase is Phase.READY, 60)
        yield Desk(vllm_server, agent, plane, http)


CONVERSATION: Final = [
    {"role": "system", "content": "You are terse. " * 20},
    {"role": "user", "content": "Name a colour of the rainbow. " * 10},
]


@on_engine
async def test_a_policy_is_live_and_what_it_takes_away_is_reported(desk: Desk) -> None:
    plane = desk.plane
    assert plane.hello is not None
    assert plane.hello.block_bytes == 16_384
    assert {each.feature: each.mode for each in plane.hello.capabilities}["budget"] == "blocks"
    first = max(1, plane.state.generation if plane.state else 0) + 1
    await plane.send(Policy(pool=POOL, uid="agent", generation=first, budget_mib=None))
    await plane.until(lambda: plane.state and plane.state.generation == first)
    await desk.generate(list(range(20, 340)), "live")
    await plane.until(lambda: plane.state and plane.state.blocks_idle and plane.state.blocks_idle >= 10)
    await plane.send(Policy(pool=POOL, uid="agent", generation=first + 1, budget_mib=0))
    await plane.until(lambda: plane.state and plane.state.generation == first + 1 and plane.state.blocks_idle == 0)
    await plane.until(lambda: not plane.receiver.keys)
    await plane.send(Policy(pool=POOL, uid="agent", generation=first + 2, budget_mib=None))
    await plane.until(lambda: plane.state and plane.state.generation == first + 2)


@on_engine
@pytest.mark.requirement("C5")
async def test_warm_prefixes_are_found_by_requests_and_again_after_a_clearing(desk: Desk) -> None:
    plane, salt = desk.plane, "tenant"
    system = [CONVERSATION[0]]
    prefixes = (Prefix(name="p", messages=json.dumps(system).encode(), salts=(salt,)),)
    await plane.send(Warm(prefixes=prefixes, standing=True, uid="agent", generation=1))
    await plane.until(lambda: plane.state and plane.state.warmth.done == 1, 60)
    assert await _cached(desk, salt) > 0
    assert await _cached(desk, "stranger") == 0
    await desk.engine("/reset_prefix_cache", {})
    await desk.generate([1, 2, 3], "other")  # the event may leave with a step
    registry = desk.agent.metrics.registry
    labels = {"outcome": "cached"}
    await plane.until(
        lambda: (registry.get_sample_value("cachefleet_agent_warmed_prefixes_total", labels) or 0) >= 2, 60
    )
    assert await _cached(desk, salt) > 0


async def _cached(desk: Desk, salt: str) -> int:
    body = {"model": "tiny", "messages": CONVERSATION, "max_tokens": 1, "cache_salt": salt}
    answer = await desk.engine("/v1/chat/completions", body)
    return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


@on_engine
async def test_a_warm_prefix_that_can_never_fit_is_told_with_tokens_and_limit(desk: Desk) -> None:
    messages = json.dumps([{"role": "system", "content": "one more word " * 20_000}]).encode()
    await desk.plane.send(Warm(prefixes=(Prefix(name="long", messages=messages),), standing=True, generation=50))
    await desk.plane.until(lambda: desk.plane.state and desk.plane.state.warmth.problems)
    assert desk.plane.state is not None
    (problem,) = desk.plane.state.warmth.problems
    (model,) = (await desk.models())["data"]
    assert (problem.kind, problem.limit) == ("too_long", model["max_model_len"] - 1)
    assert problem.tokens > 20_000
    await desk.plane.send(Warm(prefixes=(), standing=True, generation=51))
    await desk.plane.until(lambda: desk.plane.state and not desk.plane.state.warmth.problems)


@on_engine
@pytest.mark.requirement("A9")
async def test_conversations_end_with_the_cache_that_they_were_kept_for(desk: Desk) -> None:
    handle = await desk.kept(CONVERSATION)
    assert handle == await desk.kept(CONVERSATION)
    await desk.engine("/reset_prefix_cache", {})
    await desk.generate([1, 2, 3], "other")  # the event may leave with a step
    async with asyncio.timeout(60):
        while await desk.turns():  # noqa: ASYNC110 (they end in another process)
            await asyncio.sleep(0.1)


@on_engine
async def test_a_restarted_agent_takes_the_engine_for_the_same(desk: Desk, settings: dict[str, Any]) -> None:
    async with ControlPlane() as other, running(AgentSettings(control_planes=other.url, **settings)):
        await other.until(lambda: other.state and other.state.phase is Phase.READY, 60)
        assert other.hello is not None
        assert desk.plane.hello is not None
        assert other.hello.epoch == desk.plane.hello.epoch


@pytest.fixture
def broken_server(tiny_model: Path, tmp_path: Path) -> Iterator[VllmServer]:
    """An engine whose model answers with what is no number, told to look for that as pools' engines are."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    _spoil(folder / "model.safetensors", "model.norm.weight")
    environment = (("VLLM_COMPUTE_NANS_IN_LOGITS", ENVIRONMENT["VLLM_COMPUTE_NANS_IN_LOGITS"]),)
    options = replace(OPTIONS, environment=environment)
    with running_vllm(options, folder, tmp_path / "vllm.log") as server:
        yield server


def _spoil(file: Path, tensor: str) -> None:
    """Put NaN for every number of a float32 tensor."""
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:start])[tensor]["data_offsets"]
    data[start + begin : start + end] = struct.pack("<f", float("nan")) * ((end - begin) // 4)
    file.write_bytes(data)


@pytest.mark.requirement("C12")
async def test_an_engine_that_answers_with_no_numbers_is_withdrawn(
    broken_server: VllmServer, agent_settings: Callable[[VllmServer], dict[str, Any]]
) -> None:
    settings = agent_settings(broken_server)
    async with (
        ControlPlane() as plane,
        aiohttp.ClientSession() as http,
        running(AgentSettings(control_planes=plane.url, **settings)) as agent,
    ):
        await plane.until(lambda: plane.state and plane.state.phase is Phase.READY, 60)
        await Desk(broken_server, agent, plane, http).generate(list(range(10, 110)), "s")
        await plane.until(lambda: plane.state and plane.state.phase is Phase.FAILED, 60)
        await plane.until(lambda: not plane.receiver.keys)
        assert plane.state is not None
        assert plane.state.reason.split(",")[0] == "engine_corrupted"
