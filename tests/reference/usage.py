"""A worker's counts of tokens by decoded JSON, as native code reads them."""

from __future__ import annotations

import json

from cachefleet_controlplane.gateway.send.answers.usage import Usage, count


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
