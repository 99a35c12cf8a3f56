"""Which pools' answers have no counts of cached tokens that are 0 (``hit.omitZeroCachedTokens``). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_runtime.known_results import known_of_tuples


@known_of_tuples
def omitting(pools: Iterable[PrefixCachePool]) -> frozenset[str]:
    """Return the keys of the pools whose answers have no count of cached tokens that is 0."""
    return frozenset(pool.key for pool in pools if pool.spec.hit.omit_zero_cached_tokens)
