"""Pydantic AI through a gateway: agents over OpenAI's chats and responses, and over Anthropic's messages.

``python pydantic_ai_calls.py URL MODEL``, in the environment ``agents``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Literal

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Reading(BaseModel):
    """What an agent is to answer: a call of a tool that must be called."""

    unit: Literal["C", "F"]
    exact: bool


async def main(url: str, model: str) -> None:
    """Have agents of each API answer, stream, give a typed result and fail. AssertionError, ModelHTTPError."""
    chats: Any = OpenAIProvider(
        openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60)
    )
    messages: Any = AnthropicProvider(
        anthropic_client=AsyncAnthropic(base_url=url, api_key="any", max_retries=0, timeout=60)
    )
    await _all(OpenAIChatModel, chats, model)
    await _all(OpenAIResponsesModel, chats, model)
    await _all(AnthropicModel, messages, model)


async def _all(kind: Any, provider: Any, model: str, *, typed: bool = True) -> None:
    ours = kind(model, provider=provider)
    settings: Any = {"max_tokens": 64}
    plain: Any = Agent(ours, instructions="Be brief.", model_settings=settings)
    done = await plain.run("hello there, say something")
    assert done.output
    assert done.usage.output_tokens > 0
    async with plain.run_stream("hello there, say something") as stream:
        assert [text async for text in stream.stream_text()]
    if typed:
        read = await Agent(ours, output_type=Reading, model_settings=settings).run("how warm is it?")
        assert isinstance(read.output, Reading)
    try:
        await Agent(kind("nobody", provider=provider), model_settings=settings).run("hello")
    except ModelHTTPError as error:
        assert (error.status_code, error.model_name) == (404, "nobody")
    else:
        raise AssertionError("no error for a model that is not served")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
