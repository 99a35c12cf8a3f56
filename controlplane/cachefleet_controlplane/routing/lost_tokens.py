"""Why tokens of one prompt were computed instead of served from cache: tokens by cause. Pure.

The prompt is a line of tokens from 0 to its end. What was served is its beginning. Everything behind that is lost, and
each part of it has one cause, in this order; a part that ends before the one in front of it is empty:

1. up to what the answering worker was said to hold: the cause of that shortfall (``cache_shortfall``);
2. up to what the worker held that was chosen first, where another one answered: ``moved``;
3. up to the most that any other candidate held, or was computing: ``held_elsewhere``;
4. up to what has been computed before: why it is gone: ``evicted``, ``restarted`` or ``stale``, or on a worker that was
   no candidate: ``held_elsewhere``;
5. up to the most that an engine can serve: ``first_seen``;
6. up to the end: ``last_block``.

So the tokens of all causes add up to the prompt's, less those served, whatever the levels are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.routing.cache_shortfall import Cause


class LostCause(StrEnum):
    """Why tokens were not served from cache; the value is a metric's label."""

    FIRST_SEEN = "first_seen"
    """No worker held them, and they were not computed before, as far as is remembered."""
    EVICTED = "evicted"
    """They were computed before, and are gone from the worker that did."""
    HELD_ELSEWHERE = "held_elsewhere"
    """Another worker held them, or was computing them, and was not chosen."""
    STALE = "stale"
    """The reports of the worker that held them were too old to count on."""
    RESTARTED = "restarted"
    """The worker that held them began a new epoch, or is gone."""
    SALTED = "salted"
    WINDOW = "window"
    MOVED = "moved"
    """The worker that held them was chosen, and another one answered."""
    RENDERED_DIFFERENTLY = "rendered_differently"
    NOT_LOADED = "not_loaded"
    """They were to be loaded from the host's memory or a disk of the worker."""
    NOT_RENDERED = "not_rendered"
    """The prompt's blocks are not known, so nobody can tell."""
    NOT_READ = "not_read"
    """The request has its engine read nothing from its cache, as prompt logprobs do."""
    LAST_BLOCK = "last_block"
    """The rest behind the last whole block, and the token that has to be computed in any case."""
    NOT_TOLD = "not_told"
    """The engine did not tell what it served: these tokens may have been served."""
    UNKNOWN = "unknown"


COMPUTED_TWICE: Final = frozenset(
    {
        LostCause.EVICTED,
        LostCause.HELD_ELSEWHERE,
        LostCause.STALE,
        LostCause.RESTARTED,
        LostCause.MOVED,
        LostCause.NOT_LOADED,
    }
)
"""Causes of tokens that some worker had computed before."""


class Levels(Struct, frozen=True, kw_only=True):
    """What is known of one answered prompt, in tokens from its beginning; 0 where there is nothing of the kind."""

    prompt_tokens: int
    """As the engine counts."""
    served_tokens: int
    """From cache, as the engine counts; 0 where it does not tell."""
    whole: LostCause | None = None
    """The cause of everything, where the prompt's blocks do not tell."""
    servable_tokens: int = 0
    """The most that an engine can serve: whole blocks before the last token."""
    claimed_tokens: int = 0
    """What the answering worker was said to hold."""
    shortfall: LostCause = LostCause.UNKNOWN
    """Why less than that was served, if less was."""
    first_tokens: int = 0
    """What the worker held that was chosen first."""
    elsewhere_tokens: int = 0
    """The most that any other candidate held."""
    seen_tokens: int = 0
    """What has been computed before."""
    gone: LostCause = LostCause.EVICTED
    """Why that is gone."""


def lost_tokens(levels: Levels) -> dict[LostCause, int]:
    """Tokens by cause, in all the prompt's tokens less those served; causes without tokens are left out."""
    end = max(0, levels.prompt_tokens)
    at = min(max(0, levels.served_tokens), end)
    if levels.whole is not None:
        return {levels.whole: end - at} if end > at else {}
    servable = min(levels.servable_tokens, end)
    lost: dict[LostCause, int] = {}
    for cause, reach in (*_parts(levels), (LostCause.FIRST_SEEN, servable)):
        if (reach := min(reach, servable)) > at:
            lost[cause] = lost.get(cause, 0) + reach - at
            at = reach
    if end > at:
        lost[LostCause.LAST_BLOCK] = end - at
    return lost


def _parts(levels: Levels) -> tuple[tuple[LostCause, int], ...]:
    return (
        (levels.shortfall, levels.claimed_tokens),
        (LostCause.MOVED, levels.first_tokens),
        (LostCause.HELD_ELSEWHERE, levels.elsewhere_tokens),
        (levels.gone, levels.seen_tokens),
    )


def of_shortfall(cause: Cause | None) -> LostCause:
    """The cause of a shortfall as one of lost tokens, mostly of the same value.

    No claim is of requests in flight; what reports promised and an engine had no more, it has evicted, told or not.
    """
    if cause is Cause.UNREPORTED:
        return LostCause.EVICTED
    return LostCause.UNKNOWN if cause in {None, Cause.IN_FLIGHT} else LostCause(cause.value)
