"""Chats and completions by the official client."""

from __future__ import annotations

from typing import Any, Final

from tests.controlplane.gateway.apis.client_setup import (
    CHAT_TOOLS,
    MANY,
    MESSAGES,
    NAMED,
    PROMPT,
    TOOL_NAME,
    USER,
    Clients,
    Reading,
)

SEEDS: Final = 10


async def chat_whole(ours: Clients) -> None:
    raw = await ours.openai.chat.completions.with_raw_response.create(
        model=ours.model, messages=MESSAGES, max_tokens=4, temperature=0
    )
    assert raw.headers["x-cachefleet-decision"]
    assert raw.headers["x-cachefleet-worker"]
    done = raw.parse()
    assert done.choices[0].message.content is not None
    assert done.choices[0].finish_reason in {"length", "stop"}
    assert done.usage is not None
    assert done.usage.prompt_tokens_details is not None
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


async def chat_stream(ours: Clients) -> None:
    stream = await ours.openai.chat.completions.create(
        model=ours.model, messages=MESSAGES, max_tokens=4, temperature=0, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason in {"length", "stop"}
    assert all(chunk.usage is None for chunk in chunks)


async def chat_stream_with_usage(ours: Clients) -> None:
    stream = await ours.openai.chat.completions.create(
        model=ours.model, messages=MESSAGES, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens > 0


async def chat_several_choices(ours: Clients) -> None:
    done = await ours.openai.chat.completions.create(model=ours.model, messages=USER, max_tokens=3, n=3, temperature=1)
    assert [choice.index for choice in done.choices] == [0, 1, 2]
    stream = await ours.openai.chat.completions.create(
        model=ours.model, messages=USER, max_tokens=3, n=3, temperature=1, stream=True
    )
    ended = [choice.index async for chunk in stream for choice in chunk.choices if choice.finish_reason]
    assert sorted(ended) == [0, 1, 2]


async def chat_log_probabilities(ours: Clients) -> None:
    asked: dict[str, Any] = {"messages": USER, "max_tokens": 3, "logprobs": True, "top_logprobs": 1}
    done = await ours.openai.chat.completions.create(model=ours.model, **asked)
    assert done.choices[0].logprobs is not None
    content = done.choices[0].logprobs.content
    assert content
    assert all(one.logprob <= 0 and len(one.top_logprobs) == 1 for one in content)
    stream = await ours.openai.chat.completions.create(model=ours.model, stream=True, **asked)
    told = [one async for chunk in stream for choice in chunk.choices if (one := choice.logprobs) is not None]
    assert sum(len(one.content or ()) for one in told) == len(content)


async def chat_tool_by_name(ours: Clients) -> None:
    done = await ours.openai.chat.completions.create(
        model=ours.model, messages=USER, tools=CHAT_TOOLS, tool_choice=NAMED, max_tokens=MANY
    )
    calls = done.choices[0].message.tool_calls
    assert calls
    (call,) = calls
    assert call.type == "function"
    assert call.function.name == TOOL_NAME
    Reading.model_validate_json(call.function.arguments)
    turns = [*USER, done.choices[0].message.model_dump(exclude_none=True)]
    turns.append({"role": "tool", "tool_call_id": call.id, "content": "21"})
    again = await ours.openai.chat.completions.create(
        model=ours.model, messages=turns, tools=CHAT_TOOLS, tool_choice="none", max_tokens=3
    )
    assert not again.choices[0].message.tool_calls


async def chat_some_tool(ours: Clients) -> None:
    for seed in range(SEEDS):  # a random model may not come to the end of a list of calls
        done = await ours.openai.chat.completions.create(
            model=ours.model, messages=USER, tools=CHAT_TOOLS, tool_choice="required", max_tokens=MANY, seed=seed
        )
        if done.choices[0].finish_reason == "tool_calls":
            break
    assert done.choices[0].finish_reason == "tool_calls"
    assert done.choices[0].message.tool_calls


async def chat_tool_streamed(ours: Clients) -> None:
    stream = await ours.openai.chat.completions.create(
        model=ours.model, messages=USER, tools=CHAT_TOOLS, tool_choice=NAMED, max_tokens=MANY, stream=True
    )
    calls = [
        call
        async for chunk in stream
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
        if call.function
    ]
    assert {call.function.name for call in calls if call.function and call.function.name} == {TOOL_NAME}
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    Reading.model_validate_json(arguments)


async def chat_structured(ours: Clients) -> None:
    done = await ours.openai.chat.completions.parse(
        model=ours.model, messages=USER, response_format=Reading, max_tokens=MANY
    )
    assert isinstance(done.choices[0].message.parsed, Reading)


async def completions(ours: Clients) -> None:
    done = await ours.openai.completions.create(model=ours.model, prompt=PROMPT, max_tokens=4, logprobs=1)
    assert done.choices[0].logprobs is not None
    assert done.choices[0].logprobs.tokens
    assert done.usage is not None
    several = await ours.openai.completions.create(model=ours.model, prompt=["one", "two"], n=2, max_tokens=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    ids = await ours.openai.completions.create(model=ours.model, prompt=list(range(40, 90)), max_tokens=2)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 50


async def completions_stream(ours: Clients) -> None:
    stream = await ours.openai.completions.create(model=ours.model, prompt=PROMPT, max_tokens=4, stream=True)
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason in {"length", "stop"}
