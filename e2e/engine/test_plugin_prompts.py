"""A prompt rendered for its keys serves the request that follows: the same answer, rendered once, by every API."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest

from cachefleet_core.prompt_keys import PROMPT_HEADER
from e2e.engine.plugin_client import Answer, ask_keys, call, features, fleet, keys_of
from e2e.engine.vllm import VllmOptions, VllmServer

TOOLED: Final = VllmOptions(plugin=True, extra=("--enable-auto-tool-choice", "--tool-call-parser=hermes"))

pytestmark = pytest.mark.parametrize("vllm_server", [TOOLED], indirect=True)

SYSTEM: Final = {"role": "system", "content": "You answer questions about the weather and the sea. " * 4}
PARTS: Final = {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two 字"}]}
CALL: Final = {"id": "a", "type": "function", "function": {"name": "tide", "arguments": '{"at": 3}'}}
CALLED: Final = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "low"},
]
TIDE: Final = {"name": "tide", "description": "the tide", "parameters": {"type": "object"}}
TOOLS: Final = [{"type": "function", "function": TIDE}]
COMMON: Final = {"model": "tiny", "max_tokens": 6, "temperature": 0}
CHAT, COMPLETION, RESPONSES, MESSAGES = "chat/completions", "completions", "responses", "messages"

BEGUN: Final = [SYSTEM, PARTS, {"role": "assistant", "content": "The s"}]
LOGPROBS: Final = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
STREAMED: Final = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 1}
"""One token: several may come in one piece."""
TEXT: Final = "The quick brown fox jumps over the lazy dog. " * 5
BRIEF: Final = {"model": "tiny", "max_output_tokens": 6, "temperature": 0, "instructions": "Be brief."}

BODIES: Final[list[tuple[str, dict[str, Any]]]] = [
    (CHAT, COMMON | {"messages": [SYSTEM, PARTS]}),
    (CHAT, COMMON | {"messages": [SYSTEM, PARTS, *CALLED], "tools": TOOLS, "cache_salt": "tenant"}),
    (CHAT, COMMON | {"messages": [SYSTEM, PARTS], "n": 2, "temperature": 0.7, "seed": 3} | LOGPROBS),
    (CHAT, COMMON | STREAMED | {"messages": [SYSTEM, PARTS]}),
    (CHAT, COMMON | {"messages": BEGUN, "echo": True, "add_generation_prompt": False, "continue_final_message": True}),
    (COMPLETION, COMMON | {"prompt": TEXT, "echo": True, "logprobs": 1}),
    (COMPLETION, COMMON | {"prompt": list(range(300, 400)), "cache_salt": "tenant"}),
    (RESPONSES, BRIEF | {"input": "What of the sea?"}),
    (MESSAGES, COMMON | {"messages": [{"role": "user", "content": "What of the sea?"}], "system": "Be brief."}),
]
_VARYING: Final = re.compile(
    r'"(id|created|created_at|system_fingerprint|request_id|item_id|[a-z_]*(?:cache|comput)[a-z_]*)": ?("[^"]*"|[\d.]+)'
    r"|(resp|msg|chatcmpl|cmpl)[-_][\w-]+"
)
"""Names, times, and what came from the engine's cache."""


def kept(server: VllmServer, api: str, body: dict[str, Any]) -> str:
    """The handle of a body's prompt, rendered for its keys."""
    named = f"&api={api}" if api in {RESPONSES, MESSAGES} else ""
    answer = ask_keys(server, body, f"&keep=1{named}")
    assert answer.status == 200, answer.content
    return answer.headers[PROMPT_HEADER]


def answered(server: VllmServer, api: str, body: dict[str, Any], handle: str = "") -> str:
    answer = _asked(server, api, body, handle)
    assert answer.status == 200, answer.content
    return unvaried(answer.content)


def unvaried(content: bytes) -> str:
    """An answer without what differs from one request to the next."""
    return _VARYING.sub("", content.decode())


def _asked(server: VllmServer, api: str, body: dict[str, Any], handle: str) -> Answer:
    headers = server.headers | ({PROMPT_HEADER: handle} if handle else {})
    return call(server, "POST", f"/v1/{api}", body, headers=headers)


def outcomes(server: VllmServer) -> dict[str, int]:
    counts: dict[str, int] = fleet(server, "/stats")["prompts"]
    return counts


def counted(server: VllmServer, before: dict[str, int]) -> dict[str, int]:
    """The outcomes since."""
    now = outcomes(server)
    return {
        name: now[name] - before[name] for name in now if name not in {"prompts", "bytes"} and now[name] != before[name]
    }


@pytest.mark.parametrize(("api", "body"), BODIES, ids=lambda value: json.dumps(value)[-40:])
def test_a_kept_prompt_gives_the_same_answer_and_is_used_once(
    vllm_server: VllmServer, api: str, body: dict[str, Any]
) -> None:
    plain = answered(vllm_server, api, body)
    before = outcomes(vllm_server)
    handle = kept(vllm_server, api, body)
    assert answered(vllm_server, api, body, handle) == plain
    assert counted(vllm_server, before) == {"used": 1}
    assert answered(vllm_server, api, body, handle) == plain
    assert counted(vllm_server, before) == {"used": 1, "unknown": 1}
    assert outcomes(vllm_server)["bytes"] <= before["bytes"]  # other tests' prompts expire meanwhile


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [SYSTEM, {"role": "user", "content": "another"}]},
        {"cache_salt": "other"},
        {"tools": TOOLS},
        {"add_generation_prompt": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"documents": [{"title": "a", "text": "b"}]},
        {"truncate_prompt_tokens": 20},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_request_that_shapes_its_prompt_otherwise_is_rendered(
    vllm_server: VllmServer, change: dict[str, Any]
) -> None:
    body = COMMON | {"messages": [SYSTEM, PARTS]}
    plain, before = answered(vllm_server, CHAT, body | change), outcomes(vllm_server)
    handle = kept(vllm_server, CHAT, body)
    assert answered(vllm_server, CHAT, body | change, handle) == plain
    assert counted(vllm_server, before) == {"other_prompt": 1}
    assert answered(vllm_server, CHAT, body, handle)
    assert counted(vllm_server, before) == {"other_prompt": 1, "used": 1}


@pytest.mark.parametrize(
    ("handle", "outcome"),
    [("", None), ("none", "unknown"), ("0" * 16 + "-" + "0" * 32, "other_server"), ("x" * 4096, "unknown")],
)
def test_a_handle_that_was_never_given_is_rendered(vllm_server: VllmServer, handle: str, outcome: str | None) -> None:
    body, before = COMMON | {"messages": [SYSTEM, PARTS]}, outcomes(vllm_server)
    assert answered(vllm_server, CHAT, body, handle) == answered(vllm_server, CHAT, body)
    assert counted(vllm_server, before) == ({outcome: 1} if outcome else {})


def test_several_prompts_are_not_kept(vllm_server: VllmServer) -> None:
    answer = ask_keys(vllm_server, {"prompt": ["a b c", "d e f"]}, "&keep=1")
    assert answer.status == 200
    assert PROMPT_HEADER not in answer.headers


def test_nothing_is_kept_unless_asked_for(vllm_server: VllmServer) -> None:
    before = outcomes(vllm_server)
    assert PROMPT_HEADER not in ask_keys(vllm_server, BODIES[0][1]).headers
    assert outcomes(vllm_server)["prompts"] <= before["prompts"]


def test_a_refusal_is_vllms_own_with_a_handle_too(vllm_server: VllmServer) -> None:
    body = COMMON | {"messages": [SYSTEM, PARTS]}
    handle = kept(vllm_server, CHAT, body)
    bad = body | {"temperature": "hot"}
    plain, given = _asked(vllm_server, CHAT, bad, ""), _asked(vllm_server, CHAT, bad, handle)
    assert (given.status, given.json) == (plain.status, plain.json)
    assert answered(vllm_server, CHAT, body, handle)


@pytest.mark.parametrize(("api", "body"), BODIES[-2:], ids=[RESPONSES, MESSAGES])
def test_other_apis_have_keys_and_boundaries_of_their_own_ids(
    vllm_server: VllmServer, api: str, body: dict[str, Any]
) -> None:
    found = keys_of(vllm_server, body, f"&api={api}")
    rendered = call(vllm_server, "POST", f"/v1/{api}/render", body)
    assert list(found.ids) == rendered.json["token_ids"]


def test_ids_that_are_none_turn_nothing_off(vllm_server: VllmServer) -> None:
    assert ask_keys(vllm_server, {"prompt": [1 << 40] * 40}, "&keep=1").status == 400
    assert features(vllm_server)["prompts"] == ("on", "")
    api, body = BODIES[0]
    assert answered(vllm_server, api, body, kept(vllm_server, api, body))


def test_it_is_told(vllm_server: VllmServer) -> None:
    assert features(vllm_server)["prompts"] == ("on", "")
