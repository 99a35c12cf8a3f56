"""The chunks of vLLM 0.32's streamed answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from tests.fakes import answers
from tests.fakes.answers import Json
from tests.fakes.asks import Ask
from tests.fakes.choices import chat_logprobs, completion_logprobs, finish_reason, tool_call
from tests.fakes.options import EngineOptions
from tests.fakes.scheduler import Sequence as Generation


class Chunks(Protocol):
    """Makes the chunks of one answer: ``begin`` once, ``piece`` for each delta, ``end`` once."""

    @property
    def eager(self) -> bool:
        """It begins before the engine has said anything."""
        ...

    @property
    def done(self) -> bytes:
        """What ends the stream."""
        ...

    def begin(self) -> Iterator[Json]: ...
    def piece(self, index: int, ids: Sequence[int], text: str) -> Iterator[Json]: ...
    def end(self) -> Iterator[Json]: ...
    def encode(self, chunk: Json) -> bytes: ...


class _Base:
    kind = ""
    eager = False
    done = b"data: [DONE]\n\n"

    def __init__(self, options: EngineOptions, identity: str, ask: Ask, generations: Sequence[Generation]) -> None:
        self._options = options
        self._ask = ask
        self._generations = generations
        self._head: Json = {
            "id": identity,
            "object": self.kind,
            "created": int(time.time()),
            "model": options.model,
        }

    def encode(self, chunk: Json) -> bytes:
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def _chunk(self, choices: list[Json], **rest: Any) -> Json:
        return {**self._head, "choices": choices, **rest}

    def _fingerprint(self, generation: Generation) -> Json:
        """Only the last chunk carries it: the usage chunk where there is one."""
        last = generation.finish is not None and not self._ask.include_usage
        return {"system_fingerprint": answers.fingerprint(self._options)} if last else {}

    def _end(self, *, created: bool) -> Iterator[Json]:
        if self._ask.include_usage:
            usage = answers.stream_usage(self._generations, self._ask, created=created)
            yield self._chunk([], usage=usage, system_fingerprint=answers.fingerprint(self._options))

    def _running_usage(self, generation: Generation | None, *, details: bool) -> Json:
        if not self._ask.continuous_usage:
            return {}
        prompt = len(self._ask.prompts[0])
        usage = answers.usage([generation] if generation else [], prompt)
        return {"usage": usage | ({"completion_tokens_details": None} if details else {})}


class ChatChunks(_Base):
    kind = "chat.completion.chunk"

    def __init__(self, options: EngineOptions, identity: str, ask: Ask, generations: Sequence[Generation]) -> None:
        super().__init__(options, identity, ask, generations)
        self._called: set[int] = set()

    def begin(self) -> Iterator[Json]:
        ids = self._ask.prompts[0] if self._ask.return_token_ids else None
        text = self._ask.prompt_text if self._ask.body.get("return_prompt_text") else None
        for index in range(len(self._generations)):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            usage = self._running_usage(None, details=True)
            yield self._chunk([choice], **usage, prompt_token_ids=ids, prompt_text=text)

    def piece(self, index: int, ids: Sequence[int], text: str) -> Iterator[Json]:
        generation = self._generations[index]
        choice: Json = {
            "index": index,
            "delta": self._delta(index, text),
            "logprobs": chat_logprobs(self._ask, ids),
            "finish_reason": finish_reason(self._ask, generation, named="stop"),
        }
        if generation.finish is not None:
            choice["stop_reason"] = generation.stop_reason
        choice["token_ids"] = ids if self._ask.return_token_ids else None
        yield self._chunk([choice], **self._running_usage(generation, details=True), **self._fingerprint(generation))

    def end(self) -> Iterator[Json]:
        return self._end(created=True)

    def _delta(self, index: int, text: str) -> Json:
        if self._ask.script is None or not self._ask.script.tool:
            return {"content": text}
        if index in self._called:
            return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]} if text else {}
        self._called.add(index)
        call = tool_call(self._ask, text)
        return {"tool_calls": [{"id": call["id"], "type": "function", "index": 0, "function": call["function"]}]}


class CompletionChunks(_Base):
    kind = "text_completion"

    def __init__(self, options: EngineOptions, identity: str, ask: Ask, generations: Sequence[Generation]) -> None:
        super().__init__(options, identity, ask, generations)
        self._begun: set[int] = set()

    def begin(self) -> Iterator[Json]:
        return iter(())

    def piece(self, index: int, ids: Sequence[int], text: str) -> Iterator[Json]:
        generation = self._generations[index]
        first = index not in self._begun
        self._begun.add(index)
        wanted = self._ask.return_token_ids
        choice = {
            "index": index,
            "text": text,
            "logprobs": completion_logprobs(self._ask, ids),
            "finish_reason": generation.finish,
            "stop_reason": generation.stop_reason,
            "prompt_token_ids": self._ask.prompts[index // self._ask.n] if wanted and first else None,
            "token_ids": ids if wanted else None,
        }
        yield self._chunk([choice], **self._running_usage(generation, details=False), **self._fingerprint(generation))

    def end(self) -> Iterator[Json]:
        return self._end(created=False)


class GenerateChunks(_Base):
    def __init__(self, options: EngineOptions, identity: str, ask: Ask, generations: Sequence[Generation]) -> None:
        super().__init__(options, identity, ask, generations)
        self._identity = identity
        self._mode = ask.body.get("output_mode") or "tokens"

    def begin(self) -> Iterator[Json]:
        return iter(())

    def piece(self, index: int, ids: Sequence[int], text: str) -> Iterator[Json]:
        choice = answers.generate_choice(index, self._ask, ids, text, self._generations[index])
        yield self._body(None, [choice])

    def end(self) -> Iterator[Json]:
        if self._ask.include_usage:
            yield self._body(answers.stream_usage(self._generations, self._ask, created=False), [])

    def _body(self, usage: Json | None, choices: list[Json]) -> Json:
        return {"request_id": self._identity, "usage": usage, "output_mode": self._mode, "choices": choices}
