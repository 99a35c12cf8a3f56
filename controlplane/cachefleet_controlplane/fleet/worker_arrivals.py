"""When a worker may be ready: from how long the last one of its pool took from being listed to its first readiness."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cachefleet_controlplane.workers.pool import Pool

LEAST_SECONDS: Final = 2
"""The time it takes to notice that a worker is ready."""
MOST_SECONDS: Final = 60
"""OpenAI's clients heed no longer one, and come back when they like."""
UNSEEN_SECONDS: Final = 30
"""Where no worker is there or on its way, and none has been seen to start."""


class WorkerArrivals:
    """Workers that are listed and not ready, and how long starts took, by pool; bounded by what pools list."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}
        self._started: set[tuple[str, str]] = set()
        self._took: dict[str, float] = {}
        self._serving: frozenset[str] = frozenset()
        """Pools that have a worker that is listed as ready: what it lacks now comes soon."""

    def listed(self, pools: Iterable[Pool]) -> None:
        """Note which workers are listed now, and which of them are ready."""
        now, pools = self._clock(), list(pools)
        there = {
            (pool.key, worker.name): worker.listed_ready
            for pool in pools
            for worker in pool.workers.values()
            if worker.endpoint is not None
        }
        for one, ready in there.items():
            if ready:
                self._ready(one, now)
            else:
                self._since.setdefault(one, now)
        self._since = {one: since for one, since in self._since.items() if one in there}
        self._started &= there.keys()
        self._serving = frozenset(pool for (pool, _), ready in there.items() if ready)
        self._took = {pool.key: self._took[pool.key] for pool in pools if pool.key in self._took}

    def seconds(self, pools: Iterable[Pool]) -> int:
        """After how many seconds the next worker of these pools may be ready."""
        now = self._clock()
        expected = min((seconds for pool in pools for seconds in self._expected(pool.key, now)), default=UNSEEN_SECONDS)
        return max(LEAST_SECONDS, min(MOST_SECONDS, math.ceil(expected)))

    def _ready(self, one: tuple[str, str], now: float) -> None:
        since = self._since.pop(one, None)
        if since is not None and one not in self._started:
            self._took[one[0]] = now - since
        self._started.add(one)

    def _expected(self, pool: str, now: float) -> Iterator[float]:
        """Of each worker on its way what is left of a start; beyond that, as long again as it has been late."""
        if pool in self._serving:
            yield 0.0
        took = self._took.get(pool)
        on_their_way = [(one, now - since) for one, since in self._since.items() if one[0] == pool]
        for one, age in on_their_way:
            usual = 0.0 if took is None or one in self._started else took
            yield usual - age if age < usual else age - usual
        if not on_their_way and took is not None:
            yield took
