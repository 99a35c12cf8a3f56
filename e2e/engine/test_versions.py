"""The plugin on the versions of vLLM that it supports: the same suite on a real server of each.

The oldest and the newest, which is this environment's own, run with the other tests; those between with
``make test-vllm-matrix``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import aiohttp
import pytest
from transformers import AutoTokenizer

from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.engine.cache_flush import FLUSH_PATH
from cachefleet_core.engine.left_answers import LEFT_PATH, NAME_HEADER
from cachefleet_core.tenancy import salt_digest
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.events.snapshot_client import SnapshotClient
from e2e.engine.gate_scenario import check_gate_scenario, put_policy, threshold
from e2e.engine.plugin_client import CONTRACT, ask_keys, call, features, fleet, keys_of
from e2e.engine.requests import COMPLETION, MESSAGES
from e2e.engine.side import Side
from e2e.engine.storm import MARK, OUTPUT_TOKENS, prompts, storm
from e2e.engine.test_plugin_conversations import CHAT, asked, by_ref, completed, kept, said
from e2e.engine.test_plugin_conversations import COMPLETION as PLAIN
from e2e.engine.versions import OLDEST, OTHERS
from e2e.engine.vllm import INDEX_KEY, VllmOptions, VllmServer

HERE: Final = ""
SETTLE_SECONDS: Final = 120.0
EXPECTED: Final = {
    "gate": "in_loop",
    "preemption": "in_loop",
    "finish_reason": "enum",
    "streaming": "patched",
    "fields": "patched",
    "budget": "blocks",
    "snapshot": "thread",
    "heartbeat": "mark",
    "flush": "blocks",
    "tokens": "cache",
    "keys": "render",
    "media": "on",
    "prompts": "on",
    "conversations": "on",
    "held": "late_members",
    "detokenizer": "on",
    "message_start": "on",
    "left_answers": "on",
    "answer_replay": "on",
    "restored_outputs": "on",
    "guard": "on",
    "routes": "on",
    "frontend": "python",
}
TALK: Final = [
    {"role": "system", "content": "You answer questions about the weather, the sea and the mountains. " * 5},
    {"role": "user", "content": "What is 字 <|im_end|> in café 😀?  Two  spaces."},
    {"role": "assistant", "content": "Rain."},
    {"role": "user", "content": "And the day after?"},
]


def options(version: str) -> Any:
    marks = [] if version in {HERE, OLDEST} else [pytest.mark.slow]
    return pytest.param(VllmOptions(plugin=True, version=version), id=version or "here", marks=marks)


pytestmark = pytest.mark.parametrize("vllm_server", [options(version) for version in (*OTHERS, HERE)], indirect=True)


@pytest.fixture(autouse=True)
def _memoised(vllm_server: VllmServer) -> None:
    """A tokenizer is proven in the background once the first text has come."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while features(vllm_server)["tokens"][0] != EXPECTED["tokens"]:
        assert time.monotonic() < deadline, features(vllm_server)["tokens"]
        keys_of(vllm_server, {"messages": TALK})
        time.sleep(0.2)


@pytest.fixture
async def engine(vllm_server: VllmServer) -> AsyncIterator[Side]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        yield Side(vllm_server.url, "", vllm_server.replay_endpoint, vllm_server.headers, session)


@pytest.fixture
def _no_policy(vllm_server: VllmServer) -> Iterator[None]:
    yield
    put_policy(vllm_server)


def test_every_feature_has_its_best_mode(vllm_server: VllmServer) -> None:
    told = fleet(vllm_server, "/capabilities")
    assert told["engine"].split("+")[0].startswith(vllm_server.options.version or "0.32.0")
    assert (told["note"], told["vocab_size"], told["max_model_len"]) == ("", 2048, 1024)
    assert {feature: mode for feature, (mode, _) in features(vllm_server).items()} == EXPECTED
    assert told["ranks"]["0"]["block_bytes"] == 16_384


async def test_a_messages_stream_begins_with_the_counts_that_it_ends_with(engine: Side) -> None:
    asked = {"model": "tiny", "max_tokens": 4, "stream": True, "system": "Count what was cached at once. " * 12}
    asked |= {"messages": [{"role": "user", "content": "How much?"}]}
    for again in (False, True):
        answer = await engine.send(MESSAGES, asked)
        started = next(event["message"]["usage"] for event in answer.body if event["type"] == "message_start")
        ended = next(event["usage"] for event in answer.body if event["type"] == "message_delta")
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert [started.get(part) for part in parts] == [ended.get(part) for part in parts]
        assert (started["cache_read_input_tokens"] > 0) is again
        assert sum(started.get(part) or 0 for part in parts) > 100


async def test_what_was_made_for_a_client_that_left_is_told(engine: Side) -> None:
    """Of a whole answer with two choices, by the engine's own count; before and after, nothing is known of the name."""
    prompt = list(range(500, 628))
    await engine.complete(prompt)
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 800, "ignore_eos": True, "n": 2}
    before = await made(engine)
    headers = {**engine.headers, NAME_HEADER: "left-1"}
    asking = asyncio.create_task(engine.send(COMPLETION, asked, headers=headers))
    async with asyncio.timeout(120):
        while await made(engine) < before + 20:  # noqa: ASYNC110 # another process
            await asyncio.sleep(0.02)
    asking.cancel()
    told = await engine.send(LEFT_PATH, {"name": "left-1"})
    async with asyncio.timeout(60):
        while "vllm:num_requests_running{" in (text := (await engine.send("/metrics", method="GET")).body):
            if all(
                line.endswith(" 0.0") for line in text.splitlines() if line.startswith("vllm:num_requests_running{")
            ):
                break
            await asyncio.sleep(0.02)
    assert told.status == 200
    assert told.body["prompt_tokens"] == len(prompt)
    assert told.body["cached_tokens"] == len(prompt) - 32  # of what is cached whole the last block is computed again
    assert 10 <= told.body["completion_tokens"] <= await made(engine) - before < 1600
    assert (await engine.send(LEFT_PATH, {"name": "left-2"})).status == 404


async def made(engine: Side) -> float:
    """Tokens that the engine has made."""
    text = (await engine.send("/metrics", method="GET")).body
    return sum(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:generation_tokens_total{")
    )


def test_the_gate_does_as_proposed(vllm_server: VllmServer) -> None:
    check_gate_scenario(vllm_server)


async def test_a_tenant_is_flushed_and_another_stays(engine: Side) -> None:
    tokens = list(range(300, 500))
    for salt in "ab":
        await engine.complete(tokens, cache_salt=salt)
    answer = await engine.send(FLUSH_PATH, {"salts": [salt_digest("a")]})
    assert answer.body["ranks"]["0"]["blocks"] == 200 // 32
    assert [await engine.cached(tokens, cache_salt=salt) for salt in "ab"] == [0, 200 // 32 * 32]


async def test_preempted_requests_are_handed_back(vllm_server: VllmServer, engine: Side) -> None:
    with threshold(vllm_server, 0.0, preemption="HandBack", reject_below=0.5):
        found = await storm(engine, prompts(11), **MARK)
    assert found.handed_back
    assert found.survivors
    for answer in found.handed_back:
        assert 0 < len(answer["token_ids"]) < OUTPUT_TOKENS
        assert answer["details"]["preempted"] >= 1
    rank = fleet(vllm_server, "/stats")["ranks"]["0"]
    assert (rank["running"], rank["waiting"]) == (0, 0)


@pytest.mark.usefixtures("_no_policy")
async def test_a_budget_is_in_force_at_once(vllm_server: VllmServer, engine: Side) -> None:
    async def hit(prompt: list[int]) -> int:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        answer = await engine.send(COMPLETION, body)
        return int(answer.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    (prompt,) = prompts(12, count=1)
    await hit(prompt)
    assert await hit(prompt) == 192
    put_policy(vllm_server, budget_mib=0)
    assert fleet(vllm_server, "/stats")["ranks"]["0"]["blocks_idle"] == 0
    assert await hit(prompt) == await hit(prompt) == 0
    put_policy(vllm_server)
    await hit(prompt)
    assert await hit(prompt) == 192
    audit = fleet(vllm_server, "/audit")["ranks"]["0"]
    assert audit["idle_counted"] == audit["idle_recounted"] > 0


async def test_a_snapshot_is_what_the_engine_holds(vllm_server: VllmServer, engine: Side) -> None:
    body = {"model": "tiny", "max_tokens": 2, "cache_salt": "tenant"}
    await asyncio.gather(*(engine.send(COMPLETION, body | {"prompt": prompt}) for prompt in prompts(13, count=3)))
    draft = Residents(INDEX_KEY, CONTRACT, block_size=32)
    client = SnapshotClient(vllm_server.url, key=vllm_server.options.api_key)
    head = await client.fetch(0, draft)
    audit = fleet(vllm_server, "/audit")["ranks"]["0"]
    assert (audit["ledger_missing"], audit["ledger_extra"]) == (0, 0)
    assert head.blocks == audit["blocks_cached"]
    since = [each for each in await engine.replay(head.sequence + 1) if each.sequence <= audit["sequence"]]
    assert [each.sequence for each in since] == list(range(head.sequence + 1, audit["sequence"] + 1))
    assert not any(each.events for each in since), "heartbeats at most"
    assert draft.held > 0
    found = keys_of(vllm_server, {"prompt": prompts(13, count=3)[2], "cache_salt": "tenant"})
    held = {key for chain in draft.snapshot() for key in chain.unpack()}
    assert set(found.keys) <= held, "keys of a body are those of its cached blocks"


def test_keys_are_those_of_vllms_own_ids(vllm_server: VllmServer) -> None:
    for path, body in (
        ("/v1/chat/completions/render", {"messages": TALK, "cache_salt": "s"}),
        ("/v1/completions/render", {"prompt": "The sea is calm today. " * 30}),
    ):
        answer = call(vllm_server, "POST", path, body).json
        ids = (answer[0] if isinstance(answer, list) else answer)["token_ids"]
        found = keys_of(vllm_server, body)
        assert found.ids == ids
        expected = BlockKeyer(INDEX_KEY, Namespace(CONTRACT, str(body.get("cache_salt", ""))), 32).keys(ids)
        assert found.keys == expected
    bad = {"messages": TALK, "model": "none"}
    own, ours = call(vllm_server, "POST", "/v1/chat/completions/render", bad), ask_keys(vllm_server, bad)
    assert (ours.status, ours.json) == (own.status, own.json)
    assert own.status == 404


def test_ids_are_the_plain_encoders(vllm_server: VllmServer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(vllm_server.folder)
    before = fleet(vllm_server, "/stats")["tokens"].get("memoised", 0)
    for turns in (2, 4, 4):
        (text,) = [tokenizer.apply_chat_template(TALK[:turns], tokenize=False, add_generation_prompt=True)]
        found = keys_of(vllm_server, {"messages": TALK[:turns]})
        assert found.ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert fleet(vllm_server, "/stats")["tokens"]["memoised"] > before


def test_a_conversation_goes_on_by_handle(vllm_server: VllmServer) -> None:
    body = {"model": "tiny", "messages": TALK[:2], "max_tokens": 4, "temperature": 0, "cache_salt": "by-handle"}
    first = asked(vllm_server, CHAT, body)
    turn = by_ref(CHAT, body, TALK[2:], kept(first))
    assert said(asked(vllm_server, CHAT, turn)) == said(
        call(vllm_server, "POST", f"/v1/{CHAT}", body | {"messages": TALK})
    )


def test_a_completion_goes_on_by_handle(vllm_server: VllmServer) -> None:
    body = {"model": "tiny", "prompt": [300, 301, 302], "max_tokens": 4, "temperature": 0, "return_token_ids": True}
    answer, given = completed(asked(vllm_server, PLAIN, body | {"return_prompt_cache_ref": True}))
    turn = {name: value for name, value in body.items() if name != "prompt"}
    again = asked(vllm_server, PLAIN, turn | {"prompt_cache_ref": given, "append_token_ids": [7]})
    assert again.json["choices"][0]["prompt_token_ids"] == [300, 301, 302, *answer, 7]
