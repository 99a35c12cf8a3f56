"""A worker's counts of tokens by decoded JSON, as native code reads them."""

from __future__ import annotations

import json

from cachefleet_controlplane.gateway.send.answers.usage import Usage

MOST = 2**64 - 1
"""What a larger count is read as."""


def count(told: object) -> int | None:
    """A count of tokens; None for what is no integer."""
    return min(max(0, told), MOST) if type(told) is int else None


def usage_in(body: bytes) -> Usage | None:
    """The usage of a whole chat or completion; None where there is none."""
    told = json.loads(body).get("usage")
    if not isinstance(told, dict) or not told:
        return None
    details = told.get("prompt_tokens_details")
    return Usage(
        prompt_tokens=count(told.get("prompt_tokens")) or 0,
        completion_tokens=count(told.get("completion_tokens")),
        cached_tokens=count(details.get("cached_tokens")) if isinstance(details, dict) else None,
    )
