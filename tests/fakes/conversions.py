"""Bodies of responses and of messages as the chats that vLLM 0.32 makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Body = dict[str, Any]
Message = dict[str, Any]

_SAMPLING = ("temperature", "top_p", "top_k", "stream", "cache_salt", "vllm_xargs", "chat_template_kwargs", "model")
_BILLING = "x-anthropic-billing-header"


def messages_as_chat(body: Mapping[str, Any]) -> Body:
    """What vLLM makes of a body of ``/v1/messages`` or of ``.../count_tokens``."""
    chat: Body = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    chat["messages"] = [*_system(body.get("system")), *(one for turn in body["messages"] for one in _turn(turn))]
    if body.get("max_tokens") is not None:
        chat["max_tokens"] = chat["max_completion_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if body.get("tools"):
        chat["tools"] = [_tool(one["name"], one.get("description"), one["input_schema"]) for one in body["tools"]]
        chat["tool_choice"] = _choice(body.get("tool_choice"))
    schema = ((body.get("output_config") or {}).get("format") or {}).get("schema")
    return chat | ({"response_format": _format(schema)} if schema else {})


def responses_as_chat(body: Mapping[str, Any]) -> Body:
    """What vLLM makes of a body of ``/v1/responses``; history that it would look up is left out."""
    chat: Body = {name: body[name] for name in (*_SAMPLING, "stop", "ignore_eos") if body.get(name) is not None}
    instructions = body.get("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    given = body["input"]
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else [_item(one) for one in given]
    chat["messages"] = [*system, *turns]
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    if body.get("tools"):
        chat["tools"] = [_tool(one["name"], one.get("description"), one.get("parameters")) for one in body["tools"]]
        chat["tool_choice"] = _named(body.get("tool_choice"))
    wanted = (body.get("text") or {}).get("format") or {}
    return chat | ({"response_format": _format(wanted.get("schema"))} if wanted.get("type") == "json_schema" else {})


def _system(system: str | Sequence[Mapping[str, Any]] | None) -> list[Message]:
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    texts = [block["text"] for block in blocks if block["type"] == "text" and not block["text"].startswith(_BILLING)]
    return [{"role": "system", "content": "".join(texts)}] if texts else []


def _turn(turn: Mapping[str, Any]) -> Iterator[Message]:
    content = turn["content"]
    if isinstance(content, str):
        yield {"role": turn["role"], "content": content}
        return
    message: Message = {"role": turn["role"]}
    for block in content:
        if block["type"] == "tool_result":
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _told(block.get("content"))}
    parts = [_part(block) for block in content if block["type"] in {"text", "image"}]
    calls = [_call(block) for block in content if block["type"] == "tool_use"]
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = parts[0]["text"] if len(parts) == 1 and "text" in parts[0] else parts
    if parts or turn["role"] != "user":
        yield message


def _part(block: Mapping[str, Any]) -> Body:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    return {"type": "image_url", "image_url": {"url": block["source"].get("url", "data:")}}


def _told(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or () if part.get("type") == "text")


def _call(block: Mapping[str, Any]) -> Body:
    function = {"name": block["name"], "arguments": json.dumps(block.get("input") or {})}
    return {"id": block["id"], "type": "function", "function": function}


def _item(item: Mapping[str, Any]) -> Message:
    match item.get("type", "message"):
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            return {
                "role": "assistant",
                "tool_calls": [{"id": item["call_id"], "type": "function", "function": function}],
            }
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
        case _:
            return {"role": item["role"], "content": item["content"]}


def _tool(name: str, description: str | None, parameters: Any) -> Body:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _choice(choice: Mapping[str, Any] | None) -> Any:
    match choice or {"type": "auto"}:
        case {"type": "tool", "name": name}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "any"}:
            return "required"
        case {"type": kind}:
            return kind


def _named(choice: Any) -> Any:
    if isinstance(choice, dict):
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice or "auto"


def _format(schema: Any) -> Body:
    return {"type": "json_schema", "json_schema": {"name": "json_schema", "schema": schema}}
