"""Block keys of bodies, on a worker and on vLLM's render server without an engine: vLLM's own ids, its own refusals."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, Final

import pytest

from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.prompt_keys import MEDIA_TYPE
from e2e.engine.plugin_client import CONTRACT, ask_keys, call, features, fleet, keyed_prompts, keys_of
from e2e.engine.versions import OTHERS
from e2e.engine.vllm import INDEX_KEY, VllmOptions, VllmServer

WORKER: Final = VllmOptions(plugin=True)
RENDER: Final = VllmOptions(plugin=True, cli="launch render")
"""No engine and no GPU."""
MEMO_SECONDS: Final = 120.0

SYSTEM: Final = {"role": "system", "content": "You answer questions about the weather, the sea and the mountains. " * 6}
TALK: Final = [
    SYSTEM,
    {"role": "user", "content": "What is the weather like tomorrow?"},
    {"role": "assistant", "content": "Rain, 字 and snow 😀"},
    {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two <|im_end|> three"}]},
]
BODIES: Final[list[dict[str, Any]]] = [
    {"model": "tiny", "messages": TALK},
    {"messages": TALK, "cache_salt": "tenant", "max_tokens": 5, "cache_hit_threshold": 0.5, "unknown_field": 1},
    {"messages": TALK[:2], "add_generation_prompt": False, "stream": True},
    {"prompt": "The quick brown fox jumps over the lazy dog. " * 20},
    {"prompt": list(range(300, 400)), "cache_salt": "tenant"},
]
BAD: Final[list[dict[str, Any]]] = [
    {"messages": 3},
    {"messages": []},
    {"prompt": ""},
    {"prompt": []},
    {"messages": TALK, "model": "none"},
    {"messages": [{"role": "user", "content": "lone \ud800 surrogate"}]},
    {"messages": [{"role": "user", "content": "x y z " * 3000}]},
    {"messages": TALK, "chat_template": "{{ 1 }}"},
    {"prompt": {"a": 1}},
    {"prompt": "x y z " * 3000},
    {"messages": TALK, "temperature": "hot"},
]

OLDER: Final = [
    pytest.param(replace(RENDER, version=version), id=f"render-{version}", marks=pytest.mark.slow) for version in OTHERS
]

everywhere = pytest.mark.parametrize(
    "vllm_server", [pytest.param(WORKER, id="worker"), pytest.param(RENDER, id="render"), *OLDER], indirect=True
)


def rendered(server: VllmServer, body: dict[str, Any]) -> list[list[int]]:
    path = "/v1/chat/completions/render" if "messages" in body else "/v1/completions/render"
    answer = call(server, "POST", path, body)
    assert answer.status == 200, answer.content
    prompts = answer.json if isinstance(answer.json, list) else [answer.json]
    return [prompt["token_ids"] for prompt in prompts]


@everywhere
@pytest.mark.parametrize("body", BODIES, ids=lambda body: json.dumps(body)[:40])
def test_ids_are_those_that_vllm_renders_and_keys_are_theirs(vllm_server: VllmServer, body: dict[str, Any]) -> None:
    (ids,) = rendered(vllm_server, body)
    for _ in range(2):  # the second out of the cache
        found = keys_of(vllm_server, body)
        assert found.ids == ids
        namespace = Namespace(CONTRACT, body.get("cache_salt", ""))
        assert found.keys == BlockKeyer(INDEX_KEY, namespace, 32).keys(ids)
        assert (found.tokens, found.block_size) == (len(ids), 32)


@everywhere
def test_the_answer_is_binary_and_has_ids_only_where_asked_for(vllm_server: VllmServer) -> None:
    answer = ask_keys(vllm_server, BODIES[0])
    assert answer.headers["content-type"] == MEDIA_TYPE
    (found,) = keyed_prompts(answer.content)
    assert found.ids == []
    assert len(answer.content) < 3 * found.tokens, "a fraction of a JSON array of ids"


@everywhere
def test_adapters_and_block_sizes_are_taken_from_the_query(vllm_server: VllmServer) -> None:
    found = keys_of(vllm_server, BODIES[1], "&lora=mine&block_size=16")
    expected = BlockKeyer(INDEX_KEY, Namespace(CONTRACT, "tenant", "mine"), 16).keys(found.ids)
    assert (found.block_size, found.keys) == (16, expected)


@everywhere
def test_several_prompts_of_one_body_have_an_entry_each(vllm_server: VllmServer) -> None:
    body = {"prompt": ["The sea is calm. " * 20, "ab"]}
    answer = ask_keys(vllm_server, body, "&ids=1")
    assert [found.ids for found in keyed_prompts(answer.content)] == rendered(vllm_server, body)


@everywhere
def test_boundaries_follow_what_starts_a_message(vllm_server: VllmServer) -> None:
    deadline = time.monotonic() + MEMO_SECONDS
    while features(vllm_server)["tokens"][0] != "cache":
        assert time.monotonic() < deadline, features(vllm_server)["tokens"]
        keys_of(vllm_server, BODIES[0])
        time.sleep(0.2)
    first, longer = keys_of(vllm_server, {"messages": TALK[:2]}), keys_of(vllm_server, {"messages": TALK})
    assert len(first.boundaries) == 3, "system, user, and the assistant's turn that begins"
    deepest = first.boundaries[-1]
    assert first.ids[:deepest] == longer.ids[:deepest]
    assert longer.boundaries[: len(first.boundaries)] == first.boundaries


@everywhere
@pytest.mark.parametrize("body", BAD, ids=lambda body: json.dumps(body)[:40])
def test_what_vllm_refuses_it_refuses_in_the_same_words(vllm_server: VllmServer, body: dict[str, Any]) -> None:
    path = "/v1/chat/completions/render" if "messages" in body else "/v1/completions/render"
    own, ours = call(vllm_server, "POST", path, body), ask_keys(vllm_server, body)
    assert own.status >= 400
    assert (ours.status, ours.json) == (own.status, own.json)


@everywhere
@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", "bad_json"), (b"[]", "bad_body"), ({}, "bad_body"), ({"prompt": [1 << 40] * 40}, "bad_token_ids")],
)
def test_what_is_no_prompt_is_refused_here(vllm_server: VllmServer, body: Any, code: str) -> None:
    answer = ask_keys(vllm_server, body)
    assert (answer.status, answer.json["error"]["code"]) == (400, code)


@pytest.mark.parametrize("vllm_server", [RENDER], indirect=True)
def test_a_server_without_an_engine_says_so(vllm_server: VllmServer) -> None:
    told = fleet(vllm_server, "/capabilities")
    assert told["ranks"] == {}
    assert (told["vocab_size"], told["max_model_len"]) == (2048, 1024)
    modes = features(vllm_server)
    assert modes["keys"] == ("render", "")
    for feature in ("gate", "preemption", "budget", "snapshot", "heartbeat"):
        assert modes[feature] == ("off", "this server has no engine")
    for method, path in (("GET", "/audit"), ("GET", "/snapshot")):
        answer = call(vllm_server, method, f"/v1/fleet{path}")
        assert (answer.status, answer.json["error"]["code"]) == (404, "no_engine")
    policy = call(vllm_server, "PUT", "/v1/fleet/policy", {"pool": "a/b", "generation": 1})
    assert (policy.status, policy.json["error"]["code"]) == (404, "no_engine")
    assert fleet(vllm_server, "/stats")["ranks"] == {}


@pytest.mark.parametrize("vllm_server", [WORKER], indirect=True)
def test_a_workers_keys_are_those_of_the_blocks_it_caches(vllm_server: VllmServer) -> None:
    body = BODIES[1] | {"cache_hit_threshold": 0, "ignore_eos": True, "model": "tiny"}
    found = keys_of(vllm_server, body)
    answer = call(vllm_server, "POST", "/v1/chat/completions", body).json
    assert answer["usage"]["prompt_tokens"] == found.tokens
    again = call(vllm_server, "POST", "/v1/chat/completions", body).json
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(found.keys) * 32 > 0
