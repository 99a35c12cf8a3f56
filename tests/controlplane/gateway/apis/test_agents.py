"""Coding agents by the shapes of their requests, as they send them to a base URL of one's own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.controlplane.gateway.harness import MODEL, Front, engine, events, front
from tests.fakes.engine import FakeEngine

CODEX: dict[str, str] = {
    "authorization": "Bearer anything",
    "accept": "text/event-stream",
    "originator": "codex_cli_rs",
    "user_agent": "codex_cli_rs/0.153.4 (Linux; x86_64) xterm",
    "session_id": "0199a1b2-c3d4",
    "openai_beta": "responses=experimental",
}
SHELL: dict[str, Any] = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}},
}
CLAUDE: dict[str, str] = {
    "x_api_key": "anything",
    "anthropic_version": "2023-06-01",
    "anthropic_beta": "claude-code-20250219,interleaved-thinking-2025-05-14,prompt-caching-scope-2026-01-05",
    "user_agent": "claude-cli/2.1.0 (external, cli)",
    "x_app": "cli",
    "x_claude_code_session_id": "6f1c",
}


@pytest.fixture
async def worker() -> AsyncIterator[FakeEngine]:
    async with engine() as made:
        yield made


@pytest.fixture
async def gate(worker: FakeEngine) -> AsyncIterator[Front]:
    async with front([worker]) as made:
        yield made


def codex(*turns: Any, **changes: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "model": MODEL,
        "instructions": "You are a coding agent running in a terminal.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list files"}]},
            *turns,
        ],
        "tools": [SHELL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": None,
        "store": False,
        "stream": True,
        "include": [],
        "prompt_cache_key": "0199a1b2-c3d4",
        "max_output_tokens": 8,
    }
    return own | changes


def claude(**changes: Any) -> dict[str, Any]:
    marked = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
    own: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 8,
        "stream": True,
        "temperature": 1,
        "system": [
            {"type": "text", "text": "You are Claude Code."},
            {"type": "text", "text": "Be brief. " * 20} | marked,
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"} | marked]}],
        "tools": [
            {"name": "Bash", "description": "Runs a command.", "input_schema": {"type": "object", "properties": {}}}
        ],
        "metadata": {"user_id": "user_1_account__session_2"},
    }
    return own | changes


async def test_codex_lists_models_asks_and_goes_on(gate: Front, worker: FakeEngine) -> None:
    async with gate.http.get(f"{gate.url}/v1/models?client_version=0.153.4") as answer:
        assert (answer.status, (await answer.json())["models"]) == (200, [])
    status, headers, body = await gate.settled("/v1/responses", codex(), **CODEX)
    assert (status, headers["content-type"].partition(";")[0], "x-request-id" in headers) == (
        200,
        "text/event-stream",
        True,
    )
    told = [json.loads(event.rpartition(b"data: ")[2]) for event in events(body)]
    assert [told[0]["type"], told[-1]["type"]] == ["response.created", "response.completed"]
    details = told[-1]["response"]["usage"]["input_tokens_details"]
    assert details["cached_tokens"] == 0
    said = told[-1]["response"]["output"]
    nameless = codex(*said, {"type": "message", "role": "user", "content": "go on"})
    del nameless["model"]
    assert (await gate.settled("/v1/responses", nameless, **CODEX))[0] == 200
    assert gate.records[-1].cached_tokens
    assert json.loads(worker.requests[-1].body)["tools"] == [SHELL]


async def test_codex_is_told_by_code_that_its_context_is_full() -> None:
    async with engine(max_model_len=512) as worker, front([worker], max_model_len=512) as gate:
        status, _, body = await gate.post("/v1/responses", codex(instructions="word " * 1000), **CODEX)
        assert (status, json.loads(body)["error"]["code"]) == (400, "context_length_exceeded")
        status, _, body = await gate.post("/v1/responses/compact", codex(), **CODEX)
        assert (status, json.loads(body)["error"]["code"]) == (400, "unsupported_operation")


async def test_claude_code_counts_asks_and_reads_the_cache(gate: Front, worker: FakeEngine) -> None:
    status, headers, body = await gate.post("/v1/messages/count_tokens?beta=true", claude(), **CLAUDE)
    counted = json.loads(body)["input_tokens"]
    assert (status, headers["request-id"]) == (200, headers["x-request-id"])
    for turn in range(2):
        status, headers, body = await gate.post("/v1/messages?beta=true", claude(), **CLAUDE)
        assert (status, headers["request-id"]) == (200, headers["x-request-id"])
        names = [event.split(b"\n")[0].removeprefix(b"event: ") for event in events(body)]
        assert (names[0], names[-1]) == (b"message_start", b"message_stop")
        (delta,) = [
            json.loads(event.rpartition(b"data: ")[2]) for event in events(body) if b"message_delta" in event[:24]
        ]
        assert (delta["usage"]["cache_read_input_tokens"] > 0) == bool(turn)
        read = delta["usage"]["cache_read_input_tokens"] + delta["usage"]["cache_creation_input_tokens"]
        assert delta["usage"]["input_tokens"] + read == counted
    assert json.loads(worker.requests[-1].body)["metadata"] == {"user_id": "user_1_account__session_2"}


async def test_claude_code_is_told_of_a_model_that_is_not_served_and_of_a_full_context() -> None:
    async with engine(max_model_len=512) as worker, front([worker], max_model_len=512) as gate:
        haiku = claude(model="claude-haiku-4-5-20251001")
        status, _, body = await gate.post("/v1/messages?beta=true", haiku, **CLAUDE)
        told = json.loads(body)
        assert (status, told["type"], told["error"]["type"]) == (404, "error", "not_found_error")
        assert f"Valid names: {MODEL}" in told["error"]["message"]
        full = claude(messages=[{"role": "user", "content": "word " * 1000}])
        status, _, body = await gate.post("/v1/messages?beta=true", full, **CLAUDE)
        assert (status, json.loads(body)["error"]["message"]) == (400, "prompt is too long: 513 tokens > 512 maximum")
        for path in ("/v1/v1/messages?beta=true", "/messages?beta=true"):
            status, _, body = await gate.post(path, claude(), **CLAUDE)
            told = json.loads(body)
            assert (status, told["type"], "Use /v1/messages" in told["error"]["message"]) == (404, "error", True)
