"""What a request costs on one worker, itself and others.

In seconds:

    T(Q + I + U)  +  D * t  +  (1 + D) * w * E / R  +  L / V  +  A      with  T(x) = x / R + ITL * ceil(x / C)

with Q + I the tokens that wait there, U the prompt's tokens that are not cached there, R its prefill rate in tokens a
second, ITL its inter-token latency, C the tokens it computes in one step, and E the cached tokens that would have to be
evicted to make room; of these the share w is computed again later. L are tokens loaded from the host's memory or a disk
at V tokens a second; others do not wait for that. A is what ``adapter_loading`` says, of requests for an adapter.
``t = T(Q + I + U) - T(Q + I)`` is the time that
computing the prompt takes, and D how many others wait for each second of it:

    D = k * (s + T(Q + I) + t / 2)

with k those that wait for each second of a queue, and s the queue that is there on the mean. ``worth`` has w, k and s.
What waiting for the prompt's prefix has paid is taken off what the request costs others, on workers that do not hold
it. Native code computes the same, bit for bit (``native/src/score.rs``).
"""

from __future__ import annotations

from msgspec import Struct

from cachefleet_controlplane.routing.throughput import Throughput
from cachefleet_controlplane.routing.worth import Worth


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
    delayed, standing = worth.delays(throughput.token_seconds)
    others = delayed * (standing + before + (own - before) / 2)
    lost = worth.eviction * evicted / throughput.tokens_per_second
    full = own + (own - before) * others + lost * (1 + others)
    seconds = max(own, full - paid)
    loading = loaded / throughput.loaded_per_second
    return Cost(seconds + loading + adapter, (own - before + lost) * others, full - seconds, loading, adapter)
