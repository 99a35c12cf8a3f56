"""What stands in a choice of an answer besides its text: a tool's call, why it ended, log probabilities."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from tests.fakes.asks import Ask
from tests.fakes.scheduler import Sequence as Generation


def tool_call(ask: Ask, arguments: str) -> dict[str, Any]:
    """The call of the tool that had to be called."""
    assert ask.script is not None
    function = {"name": ask.script.tool, "arguments": arguments}
    return {"id": f"chatcmpl-tool-{uuid.uuid4().hex}", "type": "function", "function": function}


def finish_reason(ask: Ask, generation: Generation, *, named: str) -> str | None:
    """As OpenAI has it: ``tool_calls`` where some tool was called, ``named`` where a certain one had to be."""
    if ask.script and ask.script.tool and generation.finish == "stop":
        return "tool_calls" if ask.script.required else named
    return generation.finish


def chat_logprobs(ask: Ask, ids: Sequence[int]) -> dict[str, Any] | None:
    """Made up, in the form of real ones."""
    if not ask.body.get("logprobs"):
        return None
    content = []
    for piece in ask.pieces(ids):
        told = {"token": piece, "logprob": -0.5, "bytes": list(piece.encode())}
        content.append({**told, "top_logprobs": [dict(told)] * min(1, ask.body.get("top_logprobs") or 0)})
    return {"content": content}


def completion_logprobs(ask: Ask, ids: Sequence[int]) -> dict[str, Any] | None:
    """Made up, in the form of real ones."""
    if ask.body.get("logprobs") is None:
        return None
    pieces = ask.pieces(ids)
    offsets = [sum(map(len, pieces[:at])) for at in range(len(pieces))]
    top = [{piece: -0.5} for piece in pieces]
    return {"text_offset": offsets, "token_logprobs": [-0.5] * len(pieces), "tokens": pieces, "top_logprobs": top}
