"""A worker's own counts of tokens, read leniently and held to what was possible: tenants' accounts rest on them. Pure.

Whatever a worker writes, no account goes down by it or beyond what its request could have cost: a count that is no
integer is not known, one below 0 is 0, one above what was possible is that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import cachefleet_native
from msgspec import Struct

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_runtime.known_results import known_of_tuples

LONGEST: Final = 2**24
"""Tokens of a prompt and its answer, where no pool says how many."""


class Usage(Struct, frozen=True):
    """The engine's counts of tokens for one answer."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens served from the prefix cache; None where the engine does not say."""


def count(told: object) -> int | None:
    """A count of tokens; None for what is no integer."""
    return max(0, told) if type(told) is int else None


def read_usage(body: bytes, endpoint: str) -> Usage | None:
    """The usage of a whole answer of an endpoint, in the terms of chats; None where it has none."""
    counts = cachefleet_native.answer_usage(body, endpoint)
    return None if counts is None else Usage(*counts)


def within(usage: Usage | None, *, longest: int | None, prompts: int = 1, choices: int = 1) -> Usage | None:
    """The usage, with no count above what so many prompts of at most ``longest`` tokens can have cost."""
    if usage is None:
        return None
    possible = (longest or LONGEST) * max(1, prompts)
    prompt, cached, completion = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    if prompt <= possible and (cached or 0) <= prompt and (completion or 0) <= possible * max(1, choices):
        return usage
    prompt = min(prompt, possible)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=None if completion is None else min(completion, possible * max(1, choices)),
        cached_tokens=None if cached is None else min(cached, prompt),
    )


@known_of_tuples
def omitting(pools: Iterable[PrefixCachePool]) -> frozenset[str]:
    """Keys of the pools whose answers have no count of cached tokens that is 0 (``hit.omitZeroCachedTokens``)."""
    return frozenset(pool.key for pool in pools if pool.spec.hit.omit_zero_cached_tokens)
