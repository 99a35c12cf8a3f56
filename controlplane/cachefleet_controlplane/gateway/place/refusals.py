"""Errors for requests that are sent to no worker. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cachefleet_controlplane.gateway.send.answers.context_overflow import Overflow
from cachefleet_controlplane.routing.decision import Decision, Prompt, Reason
from cachefleet_controlplane.routing.prompt_blocks import OUTPUT_TOKENS_COUNTED, needed_blocks
from cachefleet_controlplane.wire.errors import ApiError, no_ready_worker
from cachefleet_controlplane.wire.headers import DROPPED_REASON
from cachefleet_core.engine.suspensions import suspension_words

RETRY_AFTER_SECONDS: Final = 2
"""Retry-After where too many requests are under way."""
SUSPENDED: Final = "workers_suspended"
SUSPENDED_RETRY_SECONDS: Final = 10
"""Retry-After where the engines of all ready workers serve nothing: somebody has to wake them, as a rule."""
NOBODY: Final[Mapping[str, int]] = MappingProxyType({})

_SATURATED: Final = "rejected-saturated"
_DROPPED: Final = {
    Reason.NO_ROOM: _SATURATED,
    Reason.QUEUE_FULL: _SATURATED,
    Reason.QUEUE_TIMEOUT: "rejected-ttl-expired",
    Reason.WAIT_TOO_LONG: _SATURATED,
    Reason.DISPLACED: "evicted-queue-pressure",
}
_NO_ENDPOINTS: Final = "rejected-no-endpoints"
"""llm-d's words for the same."""
_NOT_CACHED: Final = "Nothing of this prompt is cached on the worker that would serve it now (Prefer: if-available)."
_NO_ROOM: Final = {
    Reason.NO_ROOM: "No worker of model `{model}` has room for this request now.",
    Reason.QUEUE_FULL: "No worker of model `{model}` has room for this request now, and too many wait already.",
    Reason.QUEUE_TIMEOUT: "No worker of model `{model}` had room for this request in time.",
    Reason.WAIT_TOO_LONG: "No worker of model `{model}` would have room for this request in time.",
    Reason.DISPLACED: "No worker of model `{model}` had room for this request, and another one has taken its place.",
}


def refusal(
    model: str,
    prompt: Prompt,
    decision: Decision | None,
    *,
    retry_after: int,
    who: str = "",
    path: str = "",
    suspended: Mapping[str, int] = NOBODY,
) -> ApiError:
    """Return the error for a decision without a worker: 400, 412, 429 with its reason as code, or 503.

    ``retry_after``, in seconds, is for requests without room, or without a worker. ``decision`` None: every ready
    worker was tried. ``who`` names the workers' role where roles differ, ``path`` is the request's. ``suspended``:
    workers that serve nothing though they answer, by reason.
    """
    reason = decision.reason if decision else Reason.NO_READY_WORKER
    if decision and reason is Reason.TOO_LARGE:
        return _too_large(model, prompt, decision, path)
    if reason in _NO_ROOM:
        message = f"{_NO_ROOM[reason].format(model=model)} Try again in {retry_after} s."
        return ApiError(429, message, code=reason, headers=_again(retry_after, _DROPPED[reason]))
    if reason is Reason.NOT_CACHED:
        return ApiError(412, _NOT_CACHED, code=reason)
    if suspended:
        return _suspended(model, suspended, who)
    if who:
        return _not_ready(who, model, retry_after)
    return no_ready_worker(model, headers=_again(retry_after), retry_after=retry_after)


def _again(seconds: int, dropped: str = _NO_ENDPOINTS) -> dict[str, str]:
    """Headers: when to come again, and why nobody was sent the request."""
    return {"retry-after": str(seconds), DROPPED_REASON: dropped}


def _suspended(model: str, suspended: Mapping[str, int], who: str) -> ApiError:
    told = ", ".join(f"{count} {suspension_words(why)}" for why, count in sorted(suspended.items()))
    role = f"{who} worker" if who else "worker"
    seconds = SUSPENDED_RETRY_SECONDS
    message = f"No {role} of model `{model}` serves now ({told}). When one will is not known: try again in {seconds} s."
    return ApiError(503, message, code=SUSPENDED, headers=_again(seconds))


def _not_ready(who: str, model: str, retry_after: int) -> ApiError:
    message = f"The {who} node is not ready. Model `{model}` has none that is. Try again in {retry_after} s."
    return ApiError(503, message, headers=_again(retry_after))


def _too_large(model: str, prompt: Prompt, decision: Decision, path: str) -> ApiError:
    needed, size = needed_blocks(prompt), prompt.block_size
    output = min(prompt.max_tokens, OUTPUT_TOKENS_COUNTED)
    most = decision.largest_blocks
    message = (
        f"This request needs {prompt.tokens + output} tokens ({needed} blocks of {size}) for its prompt and the start "
        f"of its answer, and no worker of model `{model}` has more than {most * size} ({most} blocks)."
    )
    return Overflow(tokens=prompt.tokens, limit=most * size, output=output).error(path, message)
