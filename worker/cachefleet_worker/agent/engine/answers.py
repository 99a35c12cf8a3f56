"""Reads what all of an engine's answers have in common, and the answer to a prompt that was run for its cache. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

ENDS: Final = frozenset({"stop", "length"})
"""How a request ends that was served whole."""


class _Details(Struct):
    cached_tokens: int | None = None


class Usage(Struct):
    """Tokens of the prompt, and how many of them were cached: None where the engine does not tell."""

    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class Token(Struct):
    """One produced token's logarithm of probability."""

    logprob: float | None = None


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
        return self.finish_reason not in ENDS


class _Logprobs(Struct):
    content: list[Token] | None = None
    token_logprobs: list[float | None] | None = None


class _Choice(Struct):
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Completion(Struct):
    usage: Usage | None = None
    choices: list[_Choice] = []  # msgspec copies it for each one


def read_run(content: bytes) -> PromptRun:
    """Out of the answer to a chat or a plain completion. ValueError where it is none."""
    try:
        answer = msgspec.json.decode(content, type=_Completion)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not JSON") from error
    usage = answer.usage or Usage()
    choice = answer.choices[0] if answer.choices else _Choice()
    told = choice.logprobs or _Logprobs()
    logprobs = [token.logprob for token in told.content or ()] + (told.token_logprobs or [])
    return PromptRun(usage.prompt_tokens, usage.cached_tokens or 0, choice.finish_reason or "", tuple(logprobs))
