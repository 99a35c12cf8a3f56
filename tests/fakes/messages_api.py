"""vLLM 0.32's answers of ``/v1/messages``: the message, the events of a stream, and refusals."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence

from tests.fakes.answers import Json, full_usage, named_event, stream_usage
from tests.fakes.asks import Ask
from tests.fakes.finish import Finish
from tests.fakes.options import EngineOptions
from tests.fakes.scheduler import Sequence as Generation


def message(options: EngineOptions, identity: str, ask: Ask, done: Sequence[tuple[Generation, str]]) -> Json:
    """A whole answer; what is null is left out."""
    ((generation, text),) = done
    reason, sequence = _stopped(ask, generation)
    whole = {
        "id": identity,
        "type": "message",
        "role": "assistant",
        "content": [_block(ask, text)],
        "model": options.model,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": _usage(full_usage([generation], ask, created=True)),
    }
    return {name: value for name, value in whole.items() if value is not None}


def counted(tokens: int) -> Json:
    """The answer of ``/v1/messages/count_tokens``."""
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


class MessageChunks:
    """The events of one answer."""

    eager = False
    done = b""

    def __init__(self, options: EngineOptions, identity: str, ask: Ask, generations: Sequence[Generation]) -> None:
        self._options = options
        self._identity = identity
        self._ask = ask
        (self._generation,) = generations
        self._open = False

    def encode(self, chunk: Json) -> bytes:
        return named_event(chunk)

    def begin(self) -> Iterator[Json]:
        head: Json = {"id": self._identity, "type": "message", "role": "assistant", "content": []}
        head |= {"model": self._options.model, "stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": self._generation.prompt_tokens, "output_tokens": 0}
        yield {"type": "message_start", "message": head | {"usage": usage}}

    def piece(self, index: int, ids: Sequence[int], text: str) -> Iterator[Json]:
        if not text:
            return
        called = bool(self._ask.script and self._ask.script.tool)
        if not self._open:
            self._open = True
            block = _block(self._ask, "{}" if called else "")
            yield {"type": "content_block_start", "content_block": block, "index": 0}
        told = {"type": "input_json_delta", "partial_json": text} if called else {"type": "text_delta", "text": text}
        yield {"type": "content_block_delta", "delta": told, "index": 0}

    def end(self) -> Iterator[Json]:
        if self._open:
            yield {"type": "content_block_stop", "index": 0}
        reason, sequence = _stopped(self._ask, self._generation)
        usage = _usage(stream_usage([self._generation], self._ask, created=True))
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        yield {"type": "message_delta", "delta": delta, "usage": usage}
        yield {"type": "message_stop"}


def _block(ask: Ask, text: str) -> Json:
    if ask.script and ask.script.tool:
        name = ask.script.tool
        return {"type": "tool_use", "id": f"chatcmpl-tool-{uuid.uuid4().hex}", "name": name, "input": json.loads(text)}
    return {"type": "text", "text": text}


def _stopped(ask: Ask, generation: Generation) -> tuple[str, str | None]:
    if generation.finish is Finish.LENGTH:
        return "max_tokens", None
    if ask.script and ask.script.tool:
        return "tool_use", None
    if isinstance(generation.stop_reason, str):
        return "stop_sequence", generation.stop_reason
    return "end_turn", None


def _usage(usage: Json) -> Json:
    """Anthropic counts cached tokens beside the input, not within it."""
    details = usage["prompt_tokens_details"]
    read, written = details["cached_tokens"] or 0, details["created_cache_tokens"] or 0
    told = {
        "input_tokens": max(0, usage["prompt_tokens"] - read - written),
        "output_tokens": usage["completion_tokens"],
    }
    return told | {"cache_creation_input_tokens": written, "cache_read_input_tokens": read}
