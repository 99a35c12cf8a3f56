"""What all of an engine's answers have in common, whatever their endpoint."""

from __future__ import annotations

from typing import Final

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
