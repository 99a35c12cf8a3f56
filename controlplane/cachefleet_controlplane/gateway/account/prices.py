"""What used tokens cost, and what caches saved of it, in whole picos (10^-12) of a currency. Pure.

A price is to a millionth, and for a million tokens; so a token costs a whole number of picos, and sums are exact.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from cachefleet_controlplane.store.tenant_records import PICOS, UsageRecord
from cachefleet_core.pool.spec import PoolSpec

_TOKENS: Final = 10**6
"""A price is for so many."""
_HOUR: Final = 3600


class Prices(Struct, frozen=True, kw_only=True):
    """Prices of a pool in picos: of a token, and of the devices of one rank for a second."""

    input: int = 0
    cached: int = 0
    output: int = 0
    second: float = 0.0


def prices_of(spec: PoolSpec) -> Prices:
    """The prices of a pool; what is not set costs nothing."""
    pricing = spec.pricing
    computed = _of_token(pricing.input)
    return Prices(
        input=computed,
        cached=computed if pricing.cached is None else _of_token(pricing.cached),
        output=_of_token(pricing.output),
        second=(pricing.gpu_hour or 0.0) * spec.engine.tensor_parallel_size * PICOS / _HOUR,
    )


def charge(prices: Prices, prompt: int, cached: int, completion: int) -> int:
    """What tokens of a prompt, of these from a cache, and generated ones are charged, in picos."""
    return (prompt - cached) * prices.input + cached * prices.cached + completion * prices.output


def price(used: UsageRecord, prices: Prices, rate: float | None) -> None:
    """Add to usage what it costs; ``rate`` is the prompt tokens that a rank computes a second, None if not known."""
    less = prices.input - prices.cached
    used.charged += charge(prices, used.prompt_tokens, used.cached_tokens, used.completion_tokens)
    used.saved += used.cached_tokens * less
    used.wasted += used.recomputed_tokens * less
    if rate:
        used.compute_saved += round(used.cached_tokens / rate * prices.second)
        used.compute_wasted += round(used.recomputed_tokens / rate * prices.second)


def _of_token(of_many: float | None) -> int:
    return round((of_many or 0.0) * PICOS / _TOKENS)
