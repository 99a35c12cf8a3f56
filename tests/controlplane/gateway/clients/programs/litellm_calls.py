"""litellm through a gateway: chats, streams, tools, messages, embeddings, the list of models, an unknown model.

``python litellm_calls.py URL MODEL``, in the environment ``agents``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import litellm

USER: Final = [{"role": "user", "content": "hello there, say something"}]
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks it up.",
        "parameters": {"type": "object", "properties": {"unit": {"type": "string"}}, "required": ["unit"]},
    },
}


def main(url: str, model: str) -> None:
    """Call everything by OpenAI's API, then a chat and a stream by Anthropic's. AssertionError, litellm's errors."""
    ours: dict[str, Any] = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "any", "num_retries": 0}
    _chats(ours)
    _tools(ours)
    asyncio.run(_awaited(ours))
    assert litellm.embedding(input=["hello"], **ours).data[0]["embedding"]
    listed = litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_base=f"{url}/v1", api_key="any"
    )
    assert listed == [model], listed
    _unknown(ours)
    _messages(url, model)


def _chats(ours: dict[str, Any]) -> None:
    done = litellm.completion(messages=USER, max_tokens=4, **ours)
    assert done.choices[0].message.content
    assert done.usage.prompt_tokens_details.cached_tokens is not None
    options = {"include_usage": True}
    chunks = list(litellm.completion(messages=USER, max_tokens=4, stream=True, stream_options=options, **ours))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)] == [4]


def _tools(ours: dict[str, Any]) -> None:
    done = litellm.completion(messages=USER, tools=[TOOL], tool_choice="required", **ours)
    (call,) = done.choices[0].message.tool_calls
    assert call.function.name == "look_up"
    assert done.choices[0].finish_reason == "tool_calls"
    turns = [*USER, done.choices[0].message.model_dump(exclude_none=True)]
    turns.append({"role": "tool", "tool_call_id": call.id, "content": "21"})
    assert litellm.completion(messages=turns, tools=[TOOL], max_tokens=4, **ours).choices[0].message.content
    chunks = litellm.completion(messages=USER, tools=[TOOL], tool_choice="required", stream=True, **ours)
    whole = litellm.stream_chunk_builder(list(chunks), messages=USER)
    assert whole.choices[0].message.tool_calls[0].function.name == "look_up"


async def _awaited(ours: dict[str, Any]) -> None:
    done = await litellm.aresponses(input="hello", max_output_tokens=4, **ours)
    assert done.output[0].content[0].text
    stream = await litellm.aresponses(input="hello", max_output_tokens=4, stream=True, **ours)
    assert [event.type async for event in stream][-1] == "response.completed"


def _unknown(ours: dict[str, Any]) -> None:
    try:
        litellm.completion(messages=USER, **(ours | {"model": "openai/nobody"}))
    except litellm.NotFoundError as error:
        assert "nobody" in str(error)
    else:
        raise AssertionError("no error for a model that is not served")


def _messages(url: str, model: str) -> None:
    ours: dict[str, Any] = {"model": f"anthropic/{model}", "api_base": url, "api_key": "any", "num_retries": 0}
    done = litellm.completion(messages=USER, max_tokens=4, **ours)
    assert done.choices[0].message.content
    assert done.usage.prompt_tokens > 0
    chunks = list(litellm.completion(messages=USER, max_tokens=4, stream=True, **ours))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    try:
        litellm.completion(messages=USER, max_tokens=4, **(ours | {"model": "anthropic/nobody"}))
    except litellm.NotFoundError as error:
        assert "nobody" in str(error)
    else:
        raise AssertionError("no error for a model that is not served")


if __name__ == "__main__":
    main(*sys.argv[1:3])
