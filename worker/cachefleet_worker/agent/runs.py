"""A prompt that was run for its cache: what the engine's answer says of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

_ENDS: Final = frozenset({"stop", "length"})


@dataclass(frozen=True, slots=True)
class PromptRun:
    """A prompt that was run: its length, how much of it was cached, how it ended, what its tokens' logarithms were."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = ""
    logprobs: tuple[float | None, ...] = ()
    """Of the tokens produced, as far as the engine tells."""

    @property
    def unfinished(self) -> bool:
        return self.finish_reason not in _ENDS


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Token(Struct):
    logprob: float | None = None


class _Logprobs(Struct):
    content: list[_Token] | None = None
    token_logprobs: list[float | None] | None = None


class _Choice(Struct):
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Completion(Struct):
    usage: _Usage | None = None
    choices: list[_Choice] = []  # msgspec copies it for each one


def read_run(content: bytes) -> PromptRun:
    """Out of the answer to a chat or a plain completion. ValueError where it is none."""
    try:
        answer = msgspec.json.decode(content, type=_Completion)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not JSON") from error
    usage = answer.usage or _Usage()
    details = usage.prompt_tokens_details or _Details()
    choice = answer.choices[0] if answer.choices else _Choice()
    told = choice.logprobs or _Logprobs()
    logprobs = [token.logprob for token in told.content or ()] + (told.token_logprobs or [])
    return PromptRun(usage.prompt_tokens, details.cached_tokens or 0, choice.finish_reason or "", tuple(logprobs))
