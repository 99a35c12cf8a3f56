"""vLLM 0.32's answers of ``/v1/responses``: the object, and the events of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from tests.fakes.answers import Json, named_event
from tests.fakes.asks import Ask
from tests.fakes.finish import Finish
from tests.fakes.options import EngineOptions
from tests.fakes.scheduler import Sequence as Generation

_ECHOED = ("instructions", "metadata")


def response(options: EngineOptions, identity: str, ask: Ask, done: Sequence[tuple[Generation, str]]) -> Json:
    """A whole answer."""
    ((generation, text),) = done
    return _object(
        options, identity, ask, state=_state(generation), output=[_item(ask, text)], usage=_usage(generation)
    )


class ResponseChunks:
    """The events of one answer, numbered."""

    eager = True
    done = b""

    def __init__(self, options: EngineOptions, identity: str, ask: Ask, generations: Sequence[Generation]) -> None:
        self._options = options
        self._identity = identity
        self._ask = ask
        (self._generation,) = generations
        self._created = int(time.time())
        self._count = 0
        self._text = ""
        self._item: Json | None = None

    def encode(self, chunk: Json) -> bytes:
        chunk["sequence_number"] = self._count
        self._count += 1
        return named_event(chunk)

    def begin(self) -> Iterator[Json]:
        for kind in ("response.created", "response.in_progress"):
            yield {"response": self._response("in_progress", [], None), "sequence_number": -1, "type": kind}

    def piece(self, index: int, ids: Sequence[int], text: str) -> Iterator[Json]:
        if not text:
            return
        if self._item is None:
            yield from self._open()
        self._text += text
        if self._called:
            yield self._event("function_call_arguments.delta", {"delta": text, "item_id": self._id})
        else:
            yield self._part_event("output_text.delta", {"delta": text, "logprobs": []})

    def end(self) -> Iterator[Json]:
        if self._item is not None:
            yield from self._close()
        output = [] if self._item is None else [self._item]
        whole = self._response(_state(self._generation), output, _usage(self._generation))
        yield {"response": whole, "sequence_number": -1, "type": "response.completed"}

    @property
    def _called(self) -> bool:
        return bool(self._ask.script and self._ask.script.tool)

    @property
    def _id(self) -> str:
        assert self._item is not None
        return str(self._item["id"])

    def _open(self) -> Iterator[Json]:
        self._item = _item(self._ask, "") | {"status": "in_progress"}
        yield self._event("output_item.added", {"item": dict(self._item)})
        if not self._called:
            part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
            yield self._part_event("content_part.added", {"part": part})

    def _close(self) -> Iterator[Json]:
        closed = _item(self._ask, self._text) | {"id": self._id}
        if self._called:
            closed["call_id"] = self._item["call_id"] if self._item else ""
            told = {"arguments": self._text, "item_id": self._id, "name": closed["name"]}
            yield self._event("function_call_arguments.done", told)
        else:
            yield self._part_event("output_text.done", {"logprobs": [], "text": self._text})
            yield self._part_event("content_part.done", {"part": closed["content"][0]})
        self._item = closed
        yield self._event("output_item.done", {"item": closed})

    def _event(self, kind: str, fields: Json) -> Json:
        return _sorted(fields | {"output_index": 0, "sequence_number": -1}) | {"type": f"response.{kind}"}

    def _part_event(self, kind: str, fields: Json) -> Json:
        return self._event(kind, fields | {"content_index": 0, "item_id": self._id})

    def _response(self, state: str, output: list[Json], usage: Json | None) -> Json:
        made = _object(self._options, self._identity, self._ask, state=state, output=output, usage=usage)
        return made | {"created_at": self._created}


def _sorted(fields: Json) -> Json:
    """OpenAI's models have their members in the order of the alphabet, but for the type; a call's name is the last."""
    order = sorted(fields, key=lambda name: (name == "name", name))
    return {name: fields[name] for name in order}


def _item(ask: Ask, text: str) -> Json:
    if ask.script and ask.script.tool:
        call = {"arguments": text, "call_id": f"chatcmpl-tool-{uuid.uuid4().hex}", "name": ask.script.tool}
        more = {"async": None, "caller": None, "namespace": None, "status": "completed"}
        return call | {"type": "function_call", "id": f"fc_{uuid.uuid4().hex}"} | more
    part: Json = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    item: Json = {"id": f"msg_{uuid.uuid4().hex}", "content": [part] if text else [], "role": "assistant"}
    return item | {"status": "completed", "type": "message", "phase": None}


def _state(generation: Generation) -> str:
    return "incomplete" if generation.finish is Finish.LENGTH else "completed"


def _usage(generation: Generation) -> Json:
    produced = len(generation.output)
    turns: dict[str, Any] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
    cached = {"cached_tokens": generation.cached_tokens or 0, "cache_write_tokens": generation.created_tokens}
    output = {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": []}
    return {
        "input_tokens": generation.prompt_tokens,
        "input_tokens_details": cached | turns,
        "output_tokens": produced,
        "output_tokens_details": output | {"tool_output_tokens_per_turn": []},
        "total_tokens": generation.prompt_tokens + produced,
    }


def _object(
    options: EngineOptions, identity: str, ask: Ask, *, state: str, output: list[Json], usage: Json | None
) -> Json:
    body = ask.client
    tools = body.get("tools") or []
    return {
        "id": identity,
        "created_at": int(time.time()),
        "incomplete_details": {"reason": "max_output_tokens"} if state == "incomplete" else None,
        **{name: body.get(name) for name in _ECHOED},
        "model": options.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "temperature": float(body.get("temperature", 1.0)),
        "tool_choice": body.get("tool_choice", "auto") if tools else "none",
        "tools": tools,
        "top_p": float(body.get("top_p", 1.0)),
        "background": body.get("background", False),
        "max_output_tokens": ask.max_tokens[0],
        "max_tool_calls": body.get("max_tool_calls"),
        "previous_response_id": None,
        "prompt": None,
        "reasoning": body.get("reasoning"),
        "service_tier": body.get("service_tier", "auto"),
        "status": state,
        "text": body.get("text"),
        "top_logprobs": None,
        "truncation": body.get("truncation", "disabled"),
        "usage": usage,
        "user": body.get("user"),
        "presence_penalty": float(body.get("presence_penalty", 0.0)),
        "frequency_penalty": float(body.get("frequency_penalty", 0.0)),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }
