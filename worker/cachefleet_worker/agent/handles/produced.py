"""What an engine produces, read out of its answers to ``/inference/v1/generate``, whole or as events. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_worker.agent.engine.answers import ENDS, Token, Usage

DONE: Final = b"[DONE]"
EVENT_END: Final = b"\n\n"
_DATA: Final = b"data:"


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
    """What has come so far of the one choice there is."""

    ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    logprobs: list[float | None] = field(default_factory=list)
    readable: bool = True
    """Whether everything was understood."""

    @property
    def whole(self) -> bool:
        """Whether it ended as an answer should."""
        return self.readable and self.finish_reason in ENDS

    def add(self, content: bytes) -> None:
        """Take over a whole answer or one event of a stream."""
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


def data_of(event: bytes) -> bytes:
    """What an event of a stream carries; b"" where it carries nothing."""
    lines = (line for line in event.split(b"\n") if line.startswith(_DATA))
    return b"\n".join(line.removeprefix(_DATA).strip() for line in lines)


class EventSplitter:
    """Cuts a stream of bytes into events. ValueError where one is longer than ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The events that are whole now, each with its end."""
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(EVENT_END)
        if len(self._rest) > self._limit:
            raise ValueError(f"an event of more than {self._limit} bytes")
        for event in events:
            yield event + EVENT_END


def with_member(content: bytes, name: str, value: object) -> bytes:
    """A JSON object with one more member. ValueError where it is none."""
    try:
        members = _members.decode(content)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not JSON") from error
    return msgspec.json.encode({**members, name: value})


def event_of(value: object) -> bytes:
    return _DATA + b" " + msgspec.json.encode(value) + EVENT_END
