"""Messages by Anthropic's official client."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from tests.controlplane.gateway.apis.client_setup import MANY, MESSAGE_TOOLS, TOOL_NAME, USER, Clients, Reading


async def messages_whole(ours: Clients) -> None:
    done = await ours.anthropic.messages.create(model=ours.model, system="You are terse.", messages=USER, max_tokens=4)
    assert (done.type, done.role) == ("message", "assistant")
    assert done.content[0].type == "text"
    assert done.stop_reason in {"max_tokens", "end_turn"}
    assert done.usage.input_tokens > 0
    turns: list[Any] = [*USER, {"role": "assistant", "content": done.content}, *USER]
    again = await ours.anthropic.messages.create(model=ours.model, messages=turns, max_tokens=2)
    assert again.usage.output_tokens > 0


async def messages_stream(ours: Clients) -> None:
    async with ours.anthropic.messages.stream(model=ours.model, messages=USER, max_tokens=4) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        done = await stream.get_final_message()
    assert done.content[0].type == "text"
    assert done.content[0].text == text
    assert done.stop_reason in {"max_tokens", "end_turn"}
    assert done.usage.output_tokens > 0
    raw = await ours.anthropic.messages.create(model=ours.model, messages=USER, max_tokens=4, stream=True)
    kinds = [event.type async for event in raw]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])


async def messages_tool(ours: Clients) -> None:
    choice: Any = {"type": "tool", "name": TOOL_NAME}
    done = await ours.anthropic.messages.create(
        model=ours.model, messages=USER, tools=MESSAGE_TOOLS, tool_choice=choice, max_tokens=MANY
    )
    (call,) = [block for block in done.content if block.type == "tool_use"]
    assert (call.name, done.stop_reason) == (TOOL_NAME, "tool_use")
    Reading.model_validate(call.input)
    async with ours.anthropic.messages.stream(
        model=ours.model, messages=USER, tools=MESSAGE_TOOLS, tool_choice=choice, max_tokens=MANY
    ) as stream:
        streamed = await stream.get_final_message()
    Reading.model_validate(next(block.input for block in streamed.content if block.type == "tool_use"))
    result: Any = [{"type": "tool_result", "tool_use_id": call.id, "content": "21"}]
    turns: list[Any] = [
        *USER,
        {"role": "assistant", "content": [call.model_dump()]},
        {"role": "user", "content": result},
    ]
    again = await ours.anthropic.messages.create(model=ours.model, messages=turns, max_tokens=3)
    assert again.usage.output_tokens > 0


async def messages_count_tokens(ours: Clients) -> None:
    counted = await ours.anthropic.messages.count_tokens(model=ours.model, system="You are terse.", messages=USER)
    done = await ours.anthropic.messages.create(model=ours.model, system="You are terse.", messages=USER, max_tokens=1)
    usage = done.usage
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    assert counted.input_tokens == usage.input_tokens + read + written


async def anthropic_errors(ours: Clients) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await ours.anthropic.messages.create(model="nobody's", messages=USER, max_tokens=1)
    assert _error_type(unknown.value) == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as refused:
        await ours.anthropic.messages.create(model=ours.model, messages=USER, max_tokens=0)
    assert _error_type(refused.value) == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError):
        async with ours.anthropic.messages.stream(model=ours.model, messages=USER, max_tokens=0) as stream:
            await stream.get_final_message()


def _error_type(error: anthropic.APIStatusError) -> str:
    body: Any = error.body
    assert body["type"] == "error", json.dumps(body)
    return str(body["error"]["type"])
