"""The fake engine's responses, messages and embeddings, and what it says where it has no choice."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from tests.fakes.conversions import messages_as_chat, responses_as_chat
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import script_of, smallest_text

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "integer"}}, "required": ["a"]}
USER = [{"role": "user", "content": "the same long beginning of every prompt " * 3}]


async def post(session: aiohttp.ClientSession, engine: FakeEngine, path: str, body: Any) -> tuple[int, Any]:
    async with session.post(engine.url + path, json=body) as response:
        return response.status, await response.json()


async def test_the_same_conversation_has_the_same_ids_in_every_api(session: aiohttp.ClientSession) -> None:
    asked = {
        "/v1/chat/completions": {"messages": USER},
        "/v1/responses": {"input": USER},
        "/v1/messages": {"model": "fake", "messages": USER, "max_tokens": 3},
    }
    async with FakeEngine() as engine:
        rendered = [await post(session, engine, f"{path}/render", body) for path, body in asked.items()]
        assert [status for status, _ in rendered] == [200, 200, 200]
        ids = [body["token_ids"] for _, body in rendered]
        assert ids[0] == ids[1] == ids[2]
        _, counted = await post(session, engine, "/v1/messages/count_tokens", asked["/v1/messages"])
        assert counted["input_tokens"] == len(ids[0])


async def test_usage_tells_of_the_cache_in_each_api_s_words(session: aiohttp.ClientSession) -> None:
    message = {"model": "fake", "messages": USER, "max_tokens": 3}
    async with FakeEngine(block_size=16) as engine:
        _, cold = await post(session, engine, "/v1/messages", message)
        _, warm = await post(session, engine, "/v1/messages", message)
        _, response = await post(session, engine, "/v1/responses", {"input": USER, "max_output_tokens": 3})
    assert cold["usage"]["cache_read_input_tokens"] == 0
    read = warm["usage"]["cache_read_input_tokens"]
    assert read > 0
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == read
    total = warm["usage"]["input_tokens"] + read + warm["usage"]["cache_creation_input_tokens"]
    assert response["usage"]["input_tokens"] == total


async def test_pooling_is_what_serves_embeddings(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(pooling=True) as engine, FakeEngine() as other:
        status, told = await post(session, engine, "/v1/embeddings", {"input": ["one", [1, 2]]})
        assert (status, [one["index"] for one in told["data"]]) == (200, [0, 1])
        assert told["usage"]["prompt_tokens"] == 5
        assert (await post(session, other, "/v1/embeddings", {"input": "one"}))[0] == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [({}, 400, "body.input"), ({"input": "x", "previous_response_id": "r"}, 404, "not found")],
)
async def test_refusals_of_responses(
    session: aiohttp.ClientSession, body: dict[str, Any], status: int, words: str
) -> None:
    async with FakeEngine() as engine:
        got, told = await post(session, engine, "/v1/responses", body)
    assert got == status
    assert words in told["error"]["message"]


async def test_refusals_of_messages_have_two_shapes(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        _, lacking = await post(session, engine, "/v1/messages", {"model": "fake", "messages": USER})
        assert lacking["error"]["type"] == "Bad Request"
        _, unknown = await post(session, engine, "/v1/messages", {"model": "x", "messages": USER, "max_tokens": 1})
        assert (unknown["type"], unknown["error"]["type"]) == ("error", "NotFoundError")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (None, "{}"),
        (SCHEMA, '{"a": "x"}'),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, "[false, false]"),
        ({"$defs": {"N": {"type": "null"}}, "anyOf": [{"$ref": "#/$defs/N"}]}, "null"),
        ({"type": "string"}, '"x"'),
    ],
)
def test_the_smallest_value(schema: Any, text: str) -> None:
    assert smallest_text(schema) == text


def test_scripts() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    named = {"type": "function", "function": {"name": "look"}}
    forced, some = (
        script_of({"tools": tools, "tool_choice": named}),
        script_of({"tools": tools, "tool_choice": "required"}),
    )
    assert forced is not None
    assert some is not None
    assert (forced.tool, forced.required, json.loads(forced.text)) == ("look", False, {"a": "x"})
    assert (some.tool, some.required) == ("look", True)
    structured = script_of({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}})
    assert structured is not None
    assert structured.tool == ""
    assert script_of({"tools": tools, "tool_choice": "auto"}) is None


def test_conversions() -> None:
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]},
    ]
    chat = messages_as_chat({"system": "s", "messages": turns, "max_tokens": 1})
    assert [turn["role"] for turn in chat["messages"]] == ["system", "user", "assistant", "tool"]
    call = chat["messages"][2]["tool_calls"][0]
    assert (call["id"], call["function"]) == ("c", {"name": "look", "arguments": '{"x": 1}'})
    items = [
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ]
    assert [turn["role"] for turn in responses_as_chat({"input": items})["messages"]] == ["assistant", "tool"]
