"""What workers' caches are worth, and which worker goes first where a pool is scaled in. Pure.

The operator writes pod deletion costs in this order, and whoever tells of a scale-in names its first worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cachefleet_core.fleet_status.worker_facts import WorkerFacts

PROMISED: Final = 10
"""How much a block of a tenant with a cache contract counts against others, where a worker is chosen to go."""


def cache_values(members: Iterable[WorkerFacts]) -> dict[str, float]:
    """Cache value by worker name, summed over its ranks."""
    values: dict[str, float] = {}
    for member in members:
        values[member.name] = values.get(member.name, 0.0) + member.cache_value
    return values


def removal_values(members: Iterable[WorkerFacts]) -> dict[str, float]:
    """The same for choosing which worker goes: blocks that cache contracts promise count PROMISED times."""
    ranks = list(members)
    values = cache_values(ranks)
    for member in ranks:
        values[member.name] += (PROMISED - 1) * member.promised_blocks
    return values


def removal_order(names: Iterable[str], values: Mapping[str, float]) -> list[str]:
    """Workers, the first to go first: those of unknown value, then by value."""
    return sorted(names, key=lambda name: (name in values, values.get(name, 0.0), name))
