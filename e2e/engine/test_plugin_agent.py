"""The agent beside real vLLM with the plugin: prompts continued by handle, policies in force, prefixes kept warm."""

from __future__ import annotations

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

from cachefleet_core.continuation import MISMATCHES, prefix_hash
from cachefleet_core.engine.engine_arguments import ENVIRONMENT
from cachefleet_core.report_frames import Phase, Policy, Prefix, Warm
from cachefleet_worker.agent.agent import Agent, running
from cachefleet_worker.agent.settings import AgentSettings
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

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.agent.http_port}{path}"
        async with self._http.post(url, json=body, headers=self._server.headers) as response:
            return response.status, await response.json(content_type=None)

    async def events(self, body: dict[str, Any]) -> list[Any]:
        url = f"http://127.0.0.1:{self.agent.http_port}/v1/continue"
        async with self._http.post(url, json=body, headers=self._server.headers) as response:
            assert response.status == 200, await response.text()
            data = [line[6:].strip() async for line in response.content if line.startswith(b"data: ")]
        assert data.pop() == b"[DONE]"
        return [json.loads(each) for each in data]

    async def render(self, messages: list[dict[str, str]], salt: str) -> list[int]:
        body = {"model": "tiny", "messages": messages, "cache_salt": salt}
        return list((await self.engine("/v1/chat/completions/render", body))["token_ids"])

    async def generate(self, ids: list[int], salt: str) -> list[int]:
        body = {"model": "tiny", "token_ids": ids, "sampling_params": GREEDY, "cache_salt": salt}
        return list((await self.engine("/inference/v1/generate", body))["choices"][0]["token_ids"])

    async def keep(self, ids: list[int], salt: str) -> dict[str, Any]:
        body = {"fingerprints": MADE, "prompt_token_ids": ids, "ends_at_boundary": True, "cache_salt": salt}
        status, cache = await self.post("/v1/handles", body)
        assert status == 201, cache
        return dict(cache)


def following(cache: dict[str, Any], append: Any, salt: str, **fields: Any) -> dict[str, Any]:
    reference = {name: cache[name] for name in ("handle", "prefix_hash", "prefix_token_count")} | MADE
    body = {"prompt_cache_ref": reference, "append_token_ids": append, "sampling_params": GREEDY, "cache_salt": salt}
    return body | fields


def tokens(events: list[Any]) -> list[int]:
    return [token for event in events for choice in event["choices"] for token in choice["token_ids"]]


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
MARKER: Final = "<|im_start|>"


@on_engine
async def test_a_turn_that_is_continued_by_handle_is_the_turn_of_all_ids(desk: Desk) -> None:
    salt = "by-handle"
    turn = await desk.render(CONVERSATION, salt)
    answer = await desk.generate(turn, salt)
    longer = [*CONVERSATION, {"role": "assistant", "content": "Red."}, {"role": "user", "content": "Another one."}]
    fresh = await desk.render(longer, salt)
    pairs = enumerate(zip(turn, fresh, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), len(turn))
    marker = (await desk.engine("/tokenize", {"model": "tiny", "prompt": MARKER, "add_special_tokens": False}))[
        "tokens"
    ]
    boundary = max(i + 1 for i in range(same) if turn[i] == marker[0])
    assert boundary > 2 * BLOCK
    cache = await desk.keep(fresh[:boundary], salt)
    status, continued = await desk.post("/v1/continue", following(cache, fresh[boundary:], salt))
    assert status == 200, continued
    assert continued["choices"][0]["token_ids"] == await desk.generate(fresh, salt)
    assert continued["usage"]["prompt_tokens_details"]["cached_tokens"] >= boundary // BLOCK * BLOCK > 0
    produced = continued["choices"][0]["token_ids"]
    assert continued["prompt_cache"]["prefix_hash"] == prefix_hash([*fresh, *produced])
    assert len(answer) == len(produced) == GREEDY["max_tokens"]


@on_engine
async def test_a_stream_is_continued_too(desk: Desk) -> None:
    salt = "by-stream"
    fresh = await desk.render(CONVERSATION, salt)
    expected = await desk.generate(fresh, salt)
    cache = await desk.keep(fresh[:-5], salt)
    *events, last = await desk.events(following(cache, fresh[-5:], salt, stream=True, output_mode="text"))
    assert tokens(events) == expected
    assert last["prompt_cache"]["prefix_token_count"] == len(fresh) + len(expected)
    assert "".join(choice["text"] for event in events for choice in event["choices"])


@on_engine
async def test_what_is_not_to_be_continued_is_refused_with_its_code(desk: Desk) -> None:
    facts = desk.agent.controller.limits
    cache = await desk.keep(list(range(10, 74)), "s")
    wrong: list[tuple[dict[str, Any], str]] = [({field: "x"}, code.value) for field, code in MISMATCHES.items()]
    wrong += [
        ({"prefix_token_count": 63}, "count_mismatch"),
        ({"prefix_hash": prefix_hash([1])}, "prefix_hash_mismatch"),
        ({"handle": "vllm_prefix_other"}, "stale_epoch"),
    ]
    for change, code in wrong:
        body = following(cache, [7], "s")
        body["prompt_cache_ref"] |= change
        status, answer = await desk.post("/v1/continue", body)
        assert (status, answer["error"]["code"]) == (409, code)
    status, answer = await desk.post("/v1/continue", following(cache, [5_000_000], "s"))
    if facts.vocab_size is None:  # then the engine says it
        assert (status, answer["error"]["message"]) == (400, "Token id 5000000 is out of vocabulary")
    else:
        assert (status, answer["error"]["code"]) == (409, "token_out_of_vocabulary")
    assert (await desk.post("/v1/continue", following(cache, [7], "s")))[0] == 200


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
        lambda: (registry.get_sample_value("cachefleet_agent_warmed_prefixes_total", labels) or 0) >= 2, 20
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
@pytest.mark.requirement("A8")
async def test_a_restarted_agent_takes_the_engine_for_the_same_and_refuses_old_handles(
    desk: Desk, settings: dict[str, Any]
) -> None:
    cache = await desk.keep(list(range(10, 74)), "s")
    async with ControlPlane() as other, running(AgentSettings(control_planes=other.url, **settings)) as agent:
        await other.until(lambda: other.state and other.state.phase is Phase.READY, 60)
        assert other.hello is not None
        assert desk.plane.hello is not None
        assert other.hello.epoch == desk.plane.hello.epoch
        first, desk.agent = desk.agent, agent
        status, answer = await desk.post("/v1/continue", following(cache, [7], "s"))
        assert (status, answer["error"]["code"]) in {(409, "handle_unknown"), (409, "stale_epoch")}
        desk.agent = first
        assert (await desk.post("/v1/continue", following(cache, [7], "s")))[0] == 200


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
