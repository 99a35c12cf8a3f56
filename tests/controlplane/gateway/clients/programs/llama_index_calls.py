"""LlamaIndex through a gateway: its model of anybody's OpenAI API.

``python llama_index_calls.py URL MODEL``, in the environment ``llama-index``.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import openai
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

USER: Final = [ChatMessage(role="user", content="hello there, say something")]


def look_up(unit: str) -> str:
    """Look it up."""
    return f"21 {unit}"


def main(url: str, model: str) -> None:
    """Chat, complete, stream, have a tool called, ask for an unknown model. AssertionError, openai's errors."""
    options: dict[str, Any] = {
        "api_base": f"{url}/v1",
        "api_key": "any",
        "max_retries": 0,
        "max_tokens": 64,
        "is_chat_model": True,
        "is_function_calling_model": True,
        "context_window": 4096,
    }
    ours = OpenAILike(model=model, **options)
    assert ours.chat(USER).message.content
    assert "".join(one.delta or "" for one in ours.stream_chat(USER))
    assert OpenAILike(model=model, **(options | {"is_chat_model": False})).complete("hello there").text
    tool = FunctionTool.from_defaults(look_up)
    called = ours.chat_with_tools([tool], chat_history=USER, tool_required=True)
    (call,) = ours.get_tool_calls_from_response(called)
    assert (call.tool_name, set(call.tool_kwargs)) == ("look_up", {"unit"})
    assert ours.predict_and_call([tool], chat_history=USER, tool_required=True).response.startswith("21")
    try:
        OpenAILike(model="nobody", **options).chat(USER)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("no error for a model that is not served")


if __name__ == "__main__":
    main(*sys.argv[1:3])
