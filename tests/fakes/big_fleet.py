"""A fleet of many pools and workers that is made up: its picture changes with every look, as a busy fleet's does."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.workers.views import FleetView
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.index_contract import Difference
from cachefleet_core.report_frames import Phase
from tests.controlplane.fleet_views import REPORT, counts, fleet_view, measured, worker_status

BLOCKS = 4096
BLOCK_BYTES = 2 * 1024 * 1024
BUDGET_MIB = 6144


class BigFleet:
    """``workers`` in ``pools``, some with a problem; of the others each look finds the share ``busy`` changed."""

    def __init__(self, *, pools: int = 20, workers: int = 300, busy: float = 1.0, seed: int = 1) -> None:
        self.policy = RoutingPolicy.CACHE_AWARE
        self._random = random.Random(seed)
        self._busy = busy
        self._keys = [f"team-{number % 4}/pool-{number:02}" for number in range(pools)]
        self._workers = [self._worker(number, self._keys[number % pools]) for number in range(workers)] if pools else []

    def view(self) -> FleetView:
        """The fleet now."""
        self._workers = [self._moved(worker) for worker in self._workers]
        empty = fleet_view()
        pools = []
        for number, key in enumerate(self._keys):
            members = [worker for worker in self._workers if worker.pool == key]
            pools.append(
                msgspec.structs.replace(
                    empty.pools[0],
                    key=key,
                    namespace=key.partition("/")[0],
                    model=f"model-{number % 7}",
                    hit_ratio=measured(queried=1000, hit=500 + 23 * number % 480),
                    workers=counts(*members),
                    budget_mib=BUDGET_MIB,
                )
            )
        return replace(empty, pools=tuple(pools), workers=tuple(self._workers))

    def _worker(self, number: int, pool: str) -> WorkerFacts:
        name = f"{pool.partition('/')[2]}-{number:03}"
        report = msgspec.structs.replace(REPORT, blocks_total=BLOCKS, blocks_free=2048, blocks_idle=1024)
        fields: dict[str, Any] = {"id": WorkerId(f"{pool}/{name}#0"), "pool": pool, "block_bytes": BLOCK_BYTES}
        return worker_status(name, **{"report": report} | fields | _PROBLEMS.get(number % 60, {}))

    def _moved(self, worker: WorkerFacts) -> WorkerFacts:
        if worker.load is None or self._random.random() >= self._busy:
            return worker
        running = self._random.randrange(200, 2400)
        idle = self._random.randrange(0, BLOCKS - running)
        load = msgspec.structs.replace(
            worker.load,
            running=running // 100,
            waiting=self._random.randrange(3),
            blocks_free=BLOCKS - running,
            blocks_idle=idle,
            prefix_queries=worker.load.prefix_queries + 4000,
            prefix_hits=worker.load.prefix_hits + self._random.randrange(1500, 3900),
        )
        return msgspec.structs.replace(worker, load=load, held_blocks=running + idle)


_PROBLEMS: dict[int, dict[str, Any]] = {
    7: {"stale": True, "report_age_seconds": 42.0},
    27: {"excluded": True, "differences": (Difference("block_size", "16", "32"),)},
    47: {"ready": False, "report": msgspec.structs.replace(REPORT, phase=Phase.WARMING, reason="warming")},
}
