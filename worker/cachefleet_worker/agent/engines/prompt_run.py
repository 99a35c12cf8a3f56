"""The result of a prompt that an engine ran for its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ENDS: Final = frozenset({"stop", "length"})
"""Finish reasons of a request that was served whole."""


@dataclass(frozen=True, slots=True)
class PromptRun:
    """Token counts, finish reason, log-probabilities."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = ""
    logprobs: tuple[float | None, ...] = ()
    """One per produced token, as far as the engine reports them; None for what is no finite number."""

    @property
    def unfinished(self) -> bool:
        """Whether the request ended otherwise than by a stop or its length."""
        return self.finish_reason not in ENDS
