"""Samples load and blocks of all pools once a step, and keeps them in the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from cachefleet_controlplane.history.cache_history import FLEET, STEP_SECONDS, CacheHistory, Gauges
from cachefleet_controlplane.workers.views import FleetView, ServedModel
from cachefleet_core.budget import budget_blocks
from cachefleet_core.fleet_status.pool_facts import PoolFacts
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.pool.spec import PrefixCachePool

_EARLY_SECONDS: Final = 1.0
"""How long before a step's end it is sampled, so that it shows what its counts led to."""

Queued = Callable[[tuple[str, str]], int]
"""Requests that wait at the gateway for a fleet: namespace and model name."""


class Sampler:
    """``run`` samples until it is cancelled; ``clock`` is Unix time in seconds."""

    def __init__(
        self,
        history: CacheHistory,
        view: Callable[[], FleetView],
        models: Callable[[], Sequence[ServedModel]],
        queued: Queued = lambda _: 0,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._history = history
        self._view = view
        self._models = models
        self._queued = queued
        self._clock = clock
        self._sleep = sleep

    async def run(self) -> None:
        """Sample near the end of each step."""
        while True:
            await self._sleep(until_next(self._clock()))
            self.sample()

    def sample(self) -> None:
        """Take one sample now."""
        declared = {pool.key: pool for model in self._models() for pool in model.declared}
        self._history.sample(gauges(self._view(), declared.get, self._queued), self._clock())


def until_next(now: float) -> float:
    """Seconds to wait for the next sample; never none, so that no clock makes it spin."""
    left = (STEP_SECONDS - _EARLY_SECONDS - now) % STEP_SECONDS
    return left if left > _EARLY_SECONDS / 2 else left + STEP_SECONDS


def gauges(view: FleetView, declared: Callable[[str], PrefixCachePool | None], queued: Queued) -> dict[str, Gauges]:
    """Load and blocks of every pool, and of all together."""
    members: dict[str, list[WorkerFacts]] = {pool.key: [] for pool in view.pools}
    for worker in view.workers:
        members.setdefault(worker.pool, []).append(worker)
    lines = {(pool.namespace, pool.model) for pool in view.pools}
    waits = {line: queued(line) for line in lines}
    found = {
        pool.key: _of_pool(pool, members[pool.key], declared(pool.key), queued=waits[pool.namespace, pool.model])
        for pool in view.pools
    }
    queried = sum(pool.hit_ratio.tokens for pool in view.pools)
    hit = sum(pool.hit_ratio.cached_tokens for pool in view.pools)
    ratio = min(1.0, hit / queried) if queried else None
    return found | {FLEET: _together(found.values(), queued=sum(waits.values()), ratio=ratio)}


def _of_pool(
    pool: PoolFacts, workers: Sequence[WorkerFacts], declared: PrefixCachePool | None, *, queued: int
) -> Gauges:
    loads = [worker.load for worker in workers if worker.load is not None]
    idle = [load.blocks_idle for load in loads if load.blocks_idle is not None]
    return Gauges(
        running=sum(load.running for load in loads),
        waiting=sum(load.waiting for load in loads),
        queued=queued,
        held_blocks=sum(worker.held_blocks for worker in workers),
        idle_blocks=sum(idle) if idle else None,
        budget_blocks=None if declared is None else _budget(declared, workers),
        hit_ratio=pool.hit_ratio.value,
    )


def _budget(pool: PrefixCachePool, workers: Iterable[WorkerFacts]) -> int | None:
    """Idle blocks that these workers may keep; None where none tells a block's size."""
    known = [worker for worker in workers if worker.listed and worker.block_bytes]
    if not known:
        return None
    sizes = ((worker.block_bytes, worker.load.blocks_total if worker.load else 0) for worker in known)
    return sum(budget_blocks(pool.spec, block_bytes=size, total=total) for size, total in sizes)


def _together(pools: Iterable[Gauges], *, queued: int, ratio: float | None) -> Gauges:
    each = list(pools)
    idle = [one.idle_blocks for one in each if one.idle_blocks is not None]
    budgets = [one.budget_blocks for one in each if one.budget_blocks is not None]
    return Gauges(
        running=sum(one.running for one in each),
        waiting=sum(one.waiting for one in each),
        queued=queued,
        held_blocks=sum(one.held_blocks for one in each),
        idle_blocks=sum(idle) if idle else None,
        budget_blocks=sum(budgets) if budgets else None,
        hit_ratio=ratio,
    )
