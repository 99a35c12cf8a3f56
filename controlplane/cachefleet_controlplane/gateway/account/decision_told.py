"""``x-cachefleet-trace`` of an answer: decision, prediction and cause, of what is the tenant's own. Pure.

The value is a dictionary of RFC 9651: names of a fixed list, numbers, words of fixed lists and a pool's name, so its
size is bounded: MOST_BYTES at most. Nothing of the prompt is in it but its length and where it changed.
"""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.gateway.apis.request_info import TOLD_HEADER
from cachefleet_controlplane.routing.decision import Decision
from cachefleet_controlplane.store.decision_records import PromptLossRecord
from cachefleet_controlplane.wire.headers import Header

MOST_BYTES: Final = 1024
"""Of the value; a longer one ends at the last member before."""


def decision_told(decision: Decision, *, cached: int | None, cause: PromptLossRecord | None) -> Header:
    """Return the header for a decision; ``cached``: tokens that the engine served, None where it has not told yet."""
    members: dict[str, str | int | None] = {
        "verdict": decision.verdict,
        "reason": decision.reason,
        "prompt": decision.prompt_tokens,
        "predicted": decision.forecast_tokens,
    }
    if decision.pool:
        members["pool"] = f'"{decision.pool}"'
    if cached is not None:
        members["cached"] = cached
    if cause is not None:
        members |= {"cause": cause.cause, "lost": cause.tokens}
        if cause.part:
            members |= {"position": cause.position, "part": cause.part, "index": cause.index}
    return TOLD_HEADER, _bounded([f"{name}={value}" for name, value in members.items()])


def _bounded(members: list[str]) -> bytes:
    value = ", ".join(members)
    while len(value) > MOST_BYTES:
        members.pop()
        value = ", ".join(members)
    return value.encode()
