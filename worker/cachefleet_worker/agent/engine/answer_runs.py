"""A prompt that was run for its cache: what the engine's answer says of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from cachefleet_worker.agent.engine.answers import ENDS, Token, Usage


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
