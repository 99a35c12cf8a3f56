"""LangChain through a gateway: its models of OpenAI's chats and responses, and of Anthropic's messages.

``python langchain_calls.py URL MODEL``, in the environment ``agents``.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import anthropic
import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

USER: Final = [HumanMessage("hello there, say something")]


def look_up(unit: str) -> str:
    """Look it up."""
    return f"21 {unit}"


TOOL: Final = StructuredTool.from_function(look_up)


def main(url: str, model: str) -> None:
    """Have each of the models chat, stream, call a tool and fail. AssertionError, and what the clients raise."""
    of_openai: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "any", "max_retries": 0, "max_tokens": 64}
    of_openai |= {"stream_usage": True}
    of_anthropic: dict[str, Any] = {"base_url": url, "api_key": "any", "max_retries": 0, "max_tokens": 64}
    _all(ChatOpenAI, of_openai, model, openai.NotFoundError, "required")
    _all(ChatOpenAI, of_openai | {"use_responses_api": True}, model, openai.NotFoundError, "look_up")
    _all(ChatAnthropic, of_anthropic, model, anthropic.NotFoundError, "any")
    embedder = OpenAIEmbeddings(
        model=model, base_url=f"{url}/v1", api_key="any", max_retries=0, check_embedding_ctx_length=False
    )
    assert len(embedder.embed_documents(["hello", "there"])) == 2


def _all(kind: Any, options: dict[str, Any], model: str, unknown: type[Exception], choice: str) -> None:
    chat = kind(model=model, **options)
    done = chat.invoke(USER)
    assert done.text, done
    assert done.usage_metadata["output_tokens"] > 0
    whole = None
    for chunk in chat.stream(USER):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.text
    assert whole.usage_metadata["input_tokens"] == done.usage_metadata["input_tokens"]
    _tools(chat, choice)
    try:
        kind(model="nobody", **options).invoke(USER)
    except unknown as error:
        assert "nobody" in str(error)
    else:
        raise AssertionError("no error for a model that is not served")


def _tools(chat: Any, choice: str) -> None:
    bound = chat.bind_tools([TOOL], tool_choice=choice)
    called = bound.invoke(USER)
    (call,) = called.tool_calls
    assert call["name"] == "look_up"
    whole = None
    for chunk in bound.stream(USER):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [one["name"] for one in whole.tool_calls] == ["look_up"]
    turns = [*USER, called, ToolMessage("21", tool_call_id=call["id"])]
    assert chat.bind_tools([TOOL]).invoke(turns).text


if __name__ == "__main__":
    main(*sys.argv[1:3])
