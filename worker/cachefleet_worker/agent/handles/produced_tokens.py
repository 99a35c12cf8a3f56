"""Reads what an engine produced out of its answers to ``/inference/v1/generate``, whole or as events. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from msgspec import Raw, Struct

from cachefleet_worker.agent.engine.answers import ENDS, Token, Usage


class _Logprobs(Struct):
    content: list[Token] | None = None


class _Choice(Struct):
    index: int = 0
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Answer(Struct):
    choices: list[_Choice] = []  # msgspec copies it for each one
    usage: Usage | None = None


_answer = msgspec.json.Decoder(_Answer)
_members = msgspec.json.Decoder(dict[str, Raw])


@dataclass(slots=True)
class Produced:
    """What one answer's single choice has held so far."""

    ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    logprobs: list[float | None] = field(default_factory=list)
    readable: bool = True
    """Whether everything so far could be read."""

    @property
    def whole(self) -> bool:
        """Whether the answer was read completely and ended normally."""
        return self.readable and self.finish_reason in ENDS

    def add(self, content: bytes) -> None:
        """Add a whole answer or one event of a stream; ``readable`` becomes False where it cannot be read."""
        try:
            answer = _answer.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.readable = False
            return
        for choice in answer.choices:
            self._add(choice)
        if answer.usage is not None:
            self.prompt_tokens = answer.usage.prompt_tokens
            self.cached_tokens = answer.usage.cached_tokens

    def _add(self, choice: _Choice) -> None:
        self.ids += choice.token_ids or ()
        self.finish_reason = choice.finish_reason or self.finish_reason
        if choice.logprobs is not None:
            self.logprobs += [token.logprob for token in choice.logprobs.content or ()]


def with_member(content: bytes, name: str, value: object) -> bytes:
    """A JSON object with one more member. ValueError where ``content`` is no object."""
    try:
        members = _members.decode(content)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not JSON") from error
    return msgspec.json.encode({**members, name: value})


def event_of(value: object) -> bytes:
    """A value as a server-sent event with JSON data."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
