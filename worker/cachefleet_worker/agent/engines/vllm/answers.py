"""Reads usage, log-probabilities and finish reason out of vLLM's answers. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_worker.agent.engines.prompt_run import PromptRun

_FLOOR: Final = -9999.0
"""vLLM's value for a log-probability that is NaN or minus infinity; no chosen token has it."""


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
    return PromptRun(usage.prompt_tokens, usage.cached_tokens or 0, choice.finish_reason or "", _finite(logprobs))


def _finite(logprobs: list[float | None]) -> tuple[float | None, ...]:
    return tuple(value if value is not None and value > _FLOOR else None for value in logprobs)
