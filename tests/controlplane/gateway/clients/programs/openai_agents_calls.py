"""OpenAI's Agents SDK through a gateway, over responses and over chats: runs, streams, tools, handoffs, errors.

``python openai_agents_calls.py URL MODEL``, in the environment ``agents``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)


def look_up(unit: str) -> str:
    """Look it up."""
    return f"21 {unit}"


async def main(url: str, model: str) -> None:
    """Run agents on both kinds of model. AssertionError, openai's errors."""
    set_tracing_disabled(disabled=True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60)
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        await _all(kind, client, model)
    assert [one.id async for one in client.models.list()] == [model]


async def _all(kind: Any, client: openai.AsyncOpenAI, model: str) -> None:
    ours = kind(model=model, openai_client=client)
    settings = ModelSettings(max_tokens=64, include_usage=True)
    plain = Agent(name="plain", instructions="Be brief.", model=ours, model_settings=settings)
    done = await Runner.run(plain, "hello there, say something")
    assert done.final_output
    assert done.context_wrapper.usage.output_tokens > 0
    stream = Runner.run_streamed(plain, "hello there, say something")
    kinds = [event.type async for event in stream.stream_events()]
    assert "raw_response_event" in kinds
    assert stream.final_output
    await _tools(ours)
    nobody = Agent(name="nobody", model=kind(model="nobody", openai_client=client))
    try:
        await Runner.run(nobody, "hello")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("no error for a model that is not served")


async def _tools(ours: Any) -> None:
    """The first turn must call a tool; the SDK runs it, and asks again with its result."""
    called: list[str] = []

    def noted(unit: str) -> str:
        """Look it up."""
        called.append(unit)
        return look_up(unit)

    settings = ModelSettings(max_tokens=64, tool_choice=TOOL)
    able = Agent(name="able", tools=[function_tool(noted, name_override=TOOL)], model=ours, model_settings=settings)
    done = await Runner.run(able, "how warm is it?", max_turns=3)
    assert (len(called), bool(done.final_output)) == (1, True)
    stream = Runner.run_streamed(able, "how warm is it?", max_turns=3)
    assert "run_item_stream_event" in [event.type async for event in stream.stream_events()]
    assert len(called) == 2


TOOL = "look_up"

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
