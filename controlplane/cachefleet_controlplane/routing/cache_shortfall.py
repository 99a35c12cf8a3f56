"""Why an engine served less of a prompt from its cache than a decision had predicted, a table of rules, or more. Pure.

The first rule that holds gives the cause; certain causes come before likely ones:

====================  ==============================================================================================
cause                 holds where
====================  ==============================================================================================
moved                 another worker answered than the one predicted for
rendered_differently  the engine counts another number of prompt tokens than the ids had by which blocks were known
salted                the version of the tenant's salt changed between decision and answer
restarted             the worker began a new epoch since the decision, or is gone
evicted               by the index, blocks that reports promised were removed from the worker since the decision
window                all of the prefix is held, but at its end blocks of a sliding window or a state were removed
not_loaded            what is missing was to be loaded from the host's memory or a disk
in_flight             what is missing was to be left there by requests ahead of this one
stale                 the worker's report was older than OLD_REPORT_SECONDS when it was decided
unreported            at the answer's end the worker had not told of the step in which it scheduled the request
unknown               none of these
====================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from msgspec import Struct

OLD_REPORT_SECONDS: Final = 2.0
"""Workers report each second: an older report means one is missing, with the evictions it may tell of."""


class Cause(StrEnum):
    """Why less was served from cache than predicted; the value is a metric's label."""

    MOVED = "moved"
    RENDERED_DIFFERENTLY = "rendered_differently"
    SALTED = "salted"
    RESTARTED = "restarted"
    EVICTED = "evicted"
    WINDOW = "window"
    NOT_LOADED = "not_loaded"
    IN_FLIGHT = "in_flight"
    STALE = "stale"
    UNREPORTED = "unreported"
    UNKNOWN = "unknown"


class Surplus(StrEnum):
    """Why more was served from cache than predicted; the value is a metric's label."""

    UNDER_WAY = "under_way"
    """Another request that was over when this one was decided had computed it there, as far as was known."""
    LATER = "later"
    """It came into the cache after the decision, or before, and had not been reported yet."""


def surplus(*, predicted: int, expected: int, cached: int) -> dict[Surplus, int]:
    """Tokens served beyond those ``predicted``, by cause; ``expected`` are these and what was sent there lately."""
    under_way = max(0, min(cached, expected) - predicted)
    later = max(0, cached - max(expected, predicted))
    return {cause: tokens for cause, tokens in ((Surplus.UNDER_WAY, under_way), (Surplus.LATER, later)) if tokens}


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of one answered request; None where it is not known."""

    predicted_tokens: int
    cached_tokens: int | None
    """As the engine counts."""
    worker: str
    """The worker predicted for, named as ``answered_by`` names it."""
    answered_by: str
    rendered_tokens: int | None = None
    """Tokens of the prompt; None where its length was only estimated."""
    prompt_tokens: int | None = None
    """As the engine counts; None where that includes more than one prompt."""
    salt_version: int | None = None
    """At the decision; None where the pools share their blocks."""
    salt_version_now: int | None = None
    restarted: bool = False
    evicted: bool = False
    left_window: bool = False
    loaded_tokens: int = 0
    """Of the predicted ones, those that were to be loaded from below the device."""
    coming_tokens: int = 0
    """Of the predicted ones, those that requests ahead were to leave there."""
    unreported: bool = False
    report_age: float | None = None
    """Seconds at the decision; 0 where the prediction did not rest on a report."""


RULES: Final[tuple[tuple[Cause, Callable[[Facts], bool]], ...]] = (
    (Cause.MOVED, lambda facts: facts.answered_by != facts.worker),
    (Cause.RENDERED_DIFFERENTLY, lambda facts: _differ(facts.rendered_tokens, facts.prompt_tokens)),
    (Cause.SALTED, lambda facts: _differ(facts.salt_version, facts.salt_version_now)),
    (Cause.RESTARTED, lambda facts: facts.restarted),
    (Cause.EVICTED, lambda facts: facts.evicted),
    (Cause.WINDOW, lambda facts: facts.left_window),
    (Cause.NOT_LOADED, lambda facts: (facts.cached_tokens or 0) >= facts.predicted_tokens - facts.loaded_tokens),
    (Cause.IN_FLIGHT, lambda facts: (facts.cached_tokens or 0) >= facts.predicted_tokens - facts.coming_tokens),
    (Cause.STALE, lambda facts: facts.report_age is None or facts.report_age > OLD_REPORT_SECONDS),
    (Cause.UNREPORTED, lambda facts: facts.unreported),
)


def shortfall(facts: Facts) -> Cause | None:
    """The cause; None where as much was cached as predicted, or the engine does not tell."""
    if facts.cached_tokens is None or facts.cached_tokens >= facts.predicted_tokens:
        return None
    return next((cause for cause, holds in RULES if holds(facts)), Cause.UNKNOWN)


def _differ(before: int | None, after: int | None) -> bool:
    return None not in (before, after) and before != after
