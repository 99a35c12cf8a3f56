"""The fake engine's gate and transfers, as the worker plugin and vLLM's NixlConnector have them."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.gate import HOOK, MESSAGE

PROMPT = list(range(100))
CHAT = {"messages": [{"role": "user", "content": "a question of some length, to fill a few blocks"}], "max_tokens": 3}
COMPLETION = {"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True}
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


async def post(
    session: aiohttp.ClientSession, engine: FakeEngine, path: str, body: Any, **headers: str
) -> tuple[int, bytes]:
    async with session.post(engine.url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.read()


async def completed(session: aiohttp.ClientSession, engine: FakeEngine, **changes: Any) -> dict[str, Any]:
    status, body = await post(session, engine, "/v1/completions", COMPLETION | changes)
    assert status == 200, body
    answer: dict[str, Any] = json.loads(body)
    return answer


def chunks(body: bytes) -> list[Any]:
    *events, done = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    assert done == b"[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.parametrize("value", [-0.01, 1.01, True, "0.5"])
@pytest.mark.parametrize("nested", [False, True])
async def test_what_is_no_ratio_is_a_400(session: aiohttp.ClientSession, value: Any, *, nested: bool) -> None:
    field = {"cache_hit_threshold": value}
    async with FakeEngine() as engine:
        for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
            status, answer = await post(session, engine, path, body | ({"vllm_xargs": field} if nested else field))
            assert (status, json.loads(answer)["error"]["message"]) == (400, MESSAGE)


async def test_too_little_cached_is_refused_and_enough_runs(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        refused = await completed(session, engine, cache_hit_threshold=0.5)
        assert refused["choices"][0]["finish_reason"] == refused["choices"][0]["stop_reason"] == "cache_threshold"
        assert (refused["choices"][0]["text"], refused["usage"]["completion_tokens"]) == ("", 0)
        told = {"hit_tokens": 0, "prompt_tokens": 100, "threshold": 0.5, "preempted": 0}
        assert refused["kv_transfer_params"] == {"cache_threshold": told}
        assert (await completed(session, engine, cache_hit_threshold=0))["choices"][0]["finish_reason"] == "length"
        assert (await completed(session, engine, cache_hit_threshold=0.96))["choices"][0]["finish_reason"] == "length"
        above = await completed(session, engine, cache_hit_threshold=0.961)
        assert above["kv_transfer_params"]["cache_threshold"]["hit_tokens"] == 96
        assert engine.worker.pool.free == engine.worker.pool.num_blocks - 1


async def test_a_policy_gates_those_who_bring_no_threshold(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        engine.gate(0.5)
        assert (await completed(session, engine))["choices"][0]["finish_reason"] == "cache_threshold"
        assert (await completed(session, engine, cache_hit_threshold=0))["choices"][0]["finish_reason"] == "length"
        for path, body in (
            ("/v1/responses", {"input": "nobody has asked that"}),
            ("/v1/messages", {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": "nor that"}]}),
        ):
            status, answer = await post(session, engine, path, body)
            assert status == 200
            assert b"cache_threshold" not in answer


async def test_b20_without_caching_nothing_is_gated(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(prefix_caching=False) as engine:
        engine.gate(1.0)
        assert (await completed(session, engine, cache_hit_threshold=1))["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("usage", [False, True])
async def test_a_refused_stream_is_a_role_and_a_reason(session: aiohttp.ClientSession, *, usage: bool) -> None:
    more: dict[str, Any] = {"stream": True, "cache_hit_threshold": 1, "n": 2}
    more |= {"stream_options": {"include_usage": True}} if usage else {}
    async with FakeEngine() as engine:
        _, body = await post(session, engine, "/v1/chat/completions", CHAT | more)
    choices = [choice for chunk in chunks(body) for choice in chunk["choices"]]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant", "assistant", None, None]
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
    assert ends == {0: "cache_threshold", 1: "cache_threshold"}
    assert bool(chunks(body)[-1].get("usage")) == usage


async def test_prefill_for_others_is_exempt_and_says_where_its_blocks_are(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(connector="nixl") as prefill, FakeEngine(connector="nixl") as decode:
        attempt = await completed(session, prefill, max_tokens=1, cache_hit_threshold=0.9, kv_transfer_params=PREFILL)
        params = attempt["kv_transfer_params"]
        assert (params["do_remote_prefill"], len(params["remote_block_ids"][0])) == (True, 7)
        told = await completed(session, decode, cache_hit_threshold=0.9, kv_transfer_params=params)
        assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 99
        assert len(decode.held()) == 6
    async with FakeEngine() as shared:
        assert (await completed(session, shared, kv_transfer_params=PREFILL))["kv_transfer_params"] is None


async def test_b19_the_hook_forces_a_refusal_where_it_is_true(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(threshold_hook=True) as engine:
        for value, reason in (("true", "cache_threshold"), ("1", "length"), ("false", "length")):
            _, body = await post(session, engine, "/v1/completions", COMPLETION, **{HOOK: value})
            assert json.loads(body)["choices"][0]["finish_reason"] == reason
