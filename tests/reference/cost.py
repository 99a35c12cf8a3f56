"""What a request costs on one worker, itself and others: the formula is in ``native/src/score.rs``."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from cachefleet_controlplane.routing.worth import Worth
from tests.reference.throughput import Throughput

MOST_BUSY: Final = 0.9
"""A pool that is busy for longer is taken to be busy for so long: a queue ends some time."""


class Cost(Struct, frozen=True):
    """In seconds."""

    seconds: float
    """With what was paid taken off."""
    others: float
    """How long others wait because of the request, in all."""
    paid: float
    """What was taken off."""
    loading: float = 0.0
    """Part of it: loading from below the device."""
    adapter: float = 0.0
    """Part of it: loading of an adapter onto the device."""


def cost_of(
    waiting: int,
    uncached: int,
    evicted: int,
    *,
    throughput: Throughput,
    worth: Worth,
    paid: float = 0.0,
    loaded: int = 0,
    adapter: float = 0.0,
) -> Cost:
    """The cost, from tokens."""
    before, own = throughput.seconds(waiting), throughput.seconds(waiting + uncached)
    delayed, standing = delays(worth, throughput.token_seconds)
    others = delayed * (standing + before + (own - before) / 2)
    lost = worth.eviction * evicted / throughput.tokens_per_second
    full = own + (own - before) * others + lost * (1 + others)
    seconds = max(own, full - paid)
    loading = loaded / throughput.loaded_per_second
    return Cost(seconds + loading + adapter, (own - before + lost) * others, full - seconds, loading, adapter)


def delays(worth: Worth, token_seconds: float) -> tuple[float, float]:
    """Requests that wait for each second of a queue, and the seconds of queue that are there on the mean.

    On a worker that computes a token in ``token_seconds``.
    """
    busy = min(MOST_BUSY, worth.computed_per_second * token_seconds)
    return worth.requests_per_second / (1 - busy), busy / 2 * worth.request_tokens * token_seconds
