"""What the pools of a model allow to keep of its conversations. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_runtime.known_results import known_of_tuples


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a fleet keeps: only what every pool of it keeps, for the shortest of their times."""

    enabled: bool = False
    history: bool = False
    handles: bool = False
    ttl_seconds: float = 0.0


NOTHING: Final = Allowance()


@known_of_tuples
def allowance(pools: Iterable[PrefixCachePool]) -> Allowance:
    """Return what pools allow together; NOTHING unless every one enables continuation."""
    specs = [pool.spec.continuation for pool in pools]
    enabled = bool(specs) and all(spec.enabled for spec in specs)
    if not enabled:
        return NOTHING
    return Allowance(
        enabled=True,
        history=all(spec.store_history for spec in specs),
        handles=all(spec.handles for spec in specs),
        ttl_seconds=float(min(spec.ttl_seconds for spec in specs)),
    )
