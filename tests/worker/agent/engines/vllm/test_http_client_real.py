"""The agent beside real vLLM: what it reports is what the engine holds, under keys that the gateway computes itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cachefleet_core.block_keys import BlockKey, BlockKeyer, Namespace
from cachefleet_core.report_frames import Phase, Warm
from cachefleet_core.warmth import Prefix
from cachefleet_local.fleet.ports import take_ports
from cachefleet_local.models.tiny_model import tiny_model_path
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.model import INDEX_KEY

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BLOCK = 32
KEYED = VllmOptions(model="tiny", api_key="key", block_size=BLOCK, num_blocks=64)
LOOPBACK = VllmOptions(
    model="tiny",
    api_key="",
    block_size=BLOCK,
    num_blocks=64,
    environment=(("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0"),),
)
"""No key, hashes as bytes, and an events endpoint that the engine connects to instead of binding it."""


@pytest.fixture(scope="module", params=[KEYED, LOOPBACK], ids=["keyed", "loopback"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    options: VllmOptions = request.param
    if options is LOOPBACK:
        options = _on_loopback(options)
    with running_vllm(options, tiny_model_path(), tmp_path_factory.mktemp("vllm") / "log") as running_server:
        yield running_server


def _on_loopback(options: VllmOptions) -> VllmOptions:
    ports = take_ports({"events": 0, "replay": 0})
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{ports['events']}",
        "replay_endpoint": f"tcp://127.0.0.1:{ports['replay']}",
    }
    return replace(options, extra=(f"--kv-events-config={json.dumps(events)}",))


@pytest.fixture
def settings(server: VllmServer, make_settings: Callable[..., AgentSettings], plane: ControlPlane) -> AgentSettings:
    return make_settings(engine_url=server.url, control_planes=plane.url, poll_seconds=0.2)


@pytest.fixture
async def agent(settings: AgentSettings, plane: ControlPlane) -> AsyncIterator[Agent]:
    async with running(settings) as agent:
        await plane.until(lambda: plane.state and plane.state.phase is Phase.READY, 20)
        yield agent


class Client:
    """What a gateway does: renders, computes keys, asks."""

    def __init__(self, server: VllmServer, plane: ControlPlane, http: aiohttp.ClientSession) -> None:
        self._server, self._plane, self._http = server, plane, http

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        headers = self._server.headers if self._server.options.api_key else {}
        async with self._http.post(self._server.url + path, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.json(content_type=None) if path != "/reset_prefix_cache" else None

    def body(self, text: str, salt: str = "") -> dict[str, Any]:
        body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
        return body | ({"cache_salt": salt} if salt else {}) | {"ignore_eos": True, "temperature": 0}

    async def keys(self, text: str, salt: str = "") -> tuple[list[BlockKey], int]:
        rendered = await self.post("/v1/chat/completions/render", self.body(text, salt))
        return self.keyer(salt).keys(rendered["token_ids"]), len(rendered["token_ids"])

    def keyer(self, salt: str) -> BlockKeyer:
        hello = self._plane.hello
        assert hello is not None
        return BlockKeyer(INDEX_KEY, Namespace(hello.contract.fingerprint(), salt), hello.contract.block_size)

    async def ask(self, text: str, salt: str = "") -> int:
        """Tokens served from the cache, as vLLM counts them."""
        answer = await self.post("/v1/chat/completions", self.body(text, salt))
        return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


@pytest.fixture
async def client(server: VllmServer, plane: ControlPlane, agent: Agent) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as http:
        yield Client(server, plane, http)


def story(number: int, words: int = 150) -> str:
    return " ".join(f"story{number} part{n} of the tale" for n in range(words // 5))


def predicted(held: set[BlockKey], keys: list[BlockKey], tokens: int) -> int:
    matched = next((i for i, key in enumerate(keys) if key not in held), len(keys))
    return min(matched, (tokens - 1) // BLOCK) * BLOCK


async def test_the_engine_is_known(plane: ControlPlane, agent: Agent, server: VllmServer) -> None:
    hello = plane.hello
    assert hello is not None
    assert hello.contract.block_size == BLOCK
    assert hello.contract.tokenizer.startswith("sha256:")
    assert hello.profile.template.startswith("sha256:")
    assert hello.engine_version.startswith("0.32")
    assert hello.blocks_total == server.options.num_blocks - 1
    assert hello.max_model_len == server.options.max_model_len
    assert {"/v1/chat/completions", "/v1/messages", "/tokenize"} <= set(hello.endpoints or ())
    assert "/v1/embeddings" not in (hello.endpoints or ())
    assert {capability.feature: capability.mode for capability in hello.capabilities}["replay"] == "zmq"


async def test_keys_of_rendered_prompts_are_the_keys_reported(plane: ControlPlane, client: Client) -> None:
    for salt in ("", "tenant-a", "tenant-b"):
        keys, tokens = await client.keys(story(1), salt)
        assert len(keys) >= 3
        assert not plane.receiver.keys & set(keys)
        assert await client.ask(story(1), salt) == 0
        await plane.holds(keys)
        assert await client.ask(story(1), salt) == predicted(plane.receiver.keys, keys, tokens) > 0


async def test_what_the_index_predicts_is_what_the_engine_serves(plane: ControlPlane, client: Client) -> None:
    """Four times the pool's size, so that most is evicted; each prompt shares its beginning with another."""
    texts = [story(number % 8) + f" and {number} " * 20 for number in range(10, 34)]
    for text in texts:
        await client.ask(text)
    for text in reversed(texts):
        keys, tokens = await client.keys(text)
        await plane.next_state()
        expected = predicted(plane.receiver.keys, keys, tokens)
        assert await client.ask(text) == expected
    assert 0 < len(plane.receiver.keys) <= 63


async def test_a_reset_empties_the_set(plane: ControlPlane, client: Client) -> None:
    keys, _ = await client.keys(story(40))
    await client.ask(story(40))
    await plane.holds(keys)
    await client.post("/reset_prefix_cache", {})
    await client.ask("short")  # the event leaves with the next step
    await plane.until(lambda: not plane.receiver.keys)


async def test_a_second_agent_recovers_everything_from_the_replay(
    server: VllmServer,
    plane: ControlPlane,
    client: Client,
    settings: AgentSettings,
    make_settings: Callable[..., AgentSettings],
) -> None:
    if server.options.extra:
        pytest.skip("the engine connects to the one agent that binds")
    await client.ask(story(50), "tenant-a")
    await plane.until(lambda: plane.receiver.keys)
    async with ControlPlane() as other:
        async with running(make_settings(engine_url=settings.engine_url, control_planes=other.url)):
            await other.until(lambda: other.state and other.receiver.keys == plane.receiver.keys, 10)
        assert other.hello is not None
        assert plane.hello is not None
        assert other.hello.epoch != plane.hello.epoch
        assert other.hello.contract == plane.hello.contract


async def test_load_is_measured(plane: ControlPlane, client: Client) -> None:
    for number in range(60, 66):
        await client.ask(story(number))
        await plane.next_state()
    await plane.until(lambda: plane.state and plane.state.blocks_free == 63)
    state = plane.state
    assert state is not None
    assert state.prefill_tokens_per_second is not None
    assert 10 < state.prefill_tokens_per_second < 1e6
    assert state.inter_token_seconds is not None
    assert 0 < state.inter_token_seconds < 1
    assert state.blocks_total == 63
    assert state.prefix_queries > 0


async def test_prompts_are_cached_on_request(plane: ControlPlane, client: Client) -> None:
    messages = json.dumps(client.body(story(70))["messages"]).encode()
    keys, _ = await client.keys(story(70), "tenant-a")
    await plane.send(
        Warm(prefixes=(Prefix(name="p", messages=messages, salt="tenant-a"), Prefix(name="bad", messages=b"{")))
    )
    await plane.until(lambda: plane.state and plane.state.warmth.done == 1 and plane.state.warmth.failed, 60)
    assert plane.state is not None
    assert (plane.state.warmth.total, plane.state.warmth.failed) == (2, ("bad",))
    await plane.holds(keys)


async def test_a_wrong_key_is_named(
    server: VllmServer, make_settings: Callable[..., AgentSettings], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not server.options.api_key:
        pytest.skip("this engine asks for no key")
    (tmp_path / "wrong").write_text("wrong")
    caplog.set_level("INFO")
    async with running(make_settings(engine_url=server.url, worker_key_file=tmp_path / "wrong")) as agent:
        await ControlPlane().until(lambda: "HTTP 401" in str([record.__dict__ for record in caplog.records]))
        await ControlPlane().until(lambda: "engine_refuses_key" in agent.unready)
        assert agent.phase is Phase.FAILED
