"""Answers whose clients disconnected: the plugin's count of what the engine computed for one.

A whole answer tells its counts only when it is there. So the gateway names such a request, and asks by that name where
its client has left; the engine has ended it by then.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

FEATURE: Final = "left_answers"
NAME_HEADER: Final = "x-cachefleet-account"
"""Names a request."""
LEFT_PATH: Final = "/v1/fleet/left"
MAX_NAME: Final = 128
"""Longest name, in bytes."""


class LeftAsk(Struct, frozen=True):
    """Query for the outcome of a request."""

    name: str


class LeftAnswer(Struct, frozen=True):
    """Tokens of all prompts and choices of a request that has ended, by the engine's own count."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """None where no prompt was looked up."""
