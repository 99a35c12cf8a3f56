"""Reads usage, log-probabilities and finish reason out of an engine's answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

ENDS: Final = frozenset({"stop", "length"})
"""Finish reasons of a request that was served whole."""


class _Details(Struct):
    cached_tokens: int | None = None


class Usage(Struct):
    """Tokens of the prompt, and how many of them were cached: None where the engine does not report it."""

    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens found in the cache; None where the engine does not report them."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class Token(Struct):
    """One produced token's log-probability."""

    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class PromptRun:
    """Result of a prompt run for its cache: token counts, finish reason, log-probabilities."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = ""
    logprobs: tuple[float | None, ...] = ()
    """One per produced token, as far as the engine reports them."""

    @property
    def unfinished(self) -> bool:
        """Whether the request ended otherwise than by a stop or its length."""
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
    """The result in a chat or plain completion. ValueError where ``content`` is none."""
    try:
        answer = msgspec.json.decode(content, type=_Completion)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not JSON") from error
    usage = answer.usage or Usage()
    choice = answer.choices[0] if answer.choices else _Choice()
    told = choice.logprobs or _Logprobs()
    logprobs = [token.logprob for token in told.content or ()] + (told.token_logprobs or [])
    return PromptRun(usage.prompt_tokens, usage.cached_tokens or 0, choice.finish_reason or "", tuple(logprobs))
