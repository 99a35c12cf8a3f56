"""The workers of a fleet for one duty, among which native code chooses by their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import cachefleet_native

from cachefleet_controlplane.index.block_index import native_rules
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.worker import Worker


class WorkerTable:
    """All workers of some pools; made again where the pools or their workers change."""

    def __init__(self, plane: cachefleet_native.Plane, pools: Sequence[Pool], *, needed: str = "") -> None:
        """``needed`` is an adapter: workers that lack it are not chosen."""
        pools = [pool for pool in pools if pool.workers]  # those left are numbered, at most one for each worker
        members = [(worker, number) for number, pool in enumerate(pools) for worker in pool.workers.values()]
        self.workers = [worker for worker, _ in members]
        for worker, number in members:
            worker.stand(pools[number].declared.spec.admission.min_free_block_percent)
        rows = [(worker.row, worker.id, worker.full_name, number) for worker, number in members]
        rules = native_rules([worker.rule for worker in self.workers])
        self.native = cachefleet_native.WorkerTable(plane, rows, rules, needed)

    def preferred(self, now: float) -> list[Worker]:
        """The workers that may be chosen now."""
        return [self.workers[number] for number in self.native.preferred(now)]

    def least_busy(self, now: float, count: int | None = None, *, first: str = "") -> list[WorkerEndpoint]:
        """At most ``count`` endpoints: the one at the URL ``first``, then those with the fewest requests."""
        count = len(self.workers) if count is None else count
        order = [self.workers[number] for number in self.native.least_busy(count * self._ranks, now)]
        begin = [one for one in self.preferred(now) if one.endpoint and one.endpoint.url == first] if first else []
        return list(dict.fromkeys(one.endpoint for one in (*begin, *order) if one.endpoint))[:count]

    @cached_property
    def _ranks(self) -> int:
        """The most workers at one endpoint."""
        return max(Counter(worker.full_name for worker in self.workers).values(), default=1)
