"""Which workers may be asked at all: the best class of them that has any.

A cache may be cold, an agent silent, a contract strange: while anything is ready, something is a candidate. Workers
of a Prefill pool answer whole requests only where no other worker is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cachefleet_controlplane.roster import Pool
from cachefleet_controlplane.workers import Worker
from cachefleet_core.pool import Role

_Rule = Callable[[Pool, Worker, float], bool]

# Dropped from the last to the first until a worker is left.
_PREFERENCES: Final[tuple[_Rule, ...]] = (
    lambda pool, _worker, _now: pool.declared.spec.role is not Role.PREFILL,
    lambda _pool, worker, _now: not worker.differences,
    lambda _pool, worker, _now: not worker.leaving,
    lambda _pool, worker, now: worker.backoff_until <= now,
)


def standing(pool: Pool, worker: Worker, now: float) -> tuple[bool, ...]:
    """All that ``eligible`` knows of a worker."""
    return worker.ready, *(rule(pool, worker, now) for rule in _PREFERENCES)


def eligible(pools: Sequence[Pool], exclude: frozenset[str], now: float) -> list[Worker]:
    """Ready workers of a fleet that are not excluded by full name or id, the preferred ones where there are any."""
    ready = [
        (pool, worker)
        for pool in pools
        for worker in pool.workers.values()
        if worker.ready and worker.full_name not in exclude and worker.id not in exclude
    ]
    for kept in range(len(_PREFERENCES), 0, -1):
        preferred = [w for pool, w in ready if all(rule(pool, w, now) for rule in _PREFERENCES[:kept])]
        if preferred:
            return preferred
    return [worker for _, worker in ready]
