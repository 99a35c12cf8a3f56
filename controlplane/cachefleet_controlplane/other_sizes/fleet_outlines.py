"""Plays pools' recorded requests through fleets of other sizes, in outline: on a thread, without Python's lock, now and
then, never for a request.

What it takes is bounded: the last requests of a pool, as many as native code has room for; and seconds of one core for
each pool. One pool is played after the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cachefleet_native import FleetLoad

from cachefleet_controlplane.capacity.capacity_report import BUDGETS, MORE_WORKERS, CapacityReports
from cachefleet_controlplane.capacity.outlined_sizes import OutlinedSizes
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_controlplane.history.recorded_requests import RecordedRequest, RecordedRequests
from cachefleet_controlplane.simulation.fleet_model import FleetModel, fleet_model
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.simulator import FleetToSimulate
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.pool.spec import PrefixCachePool

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 10.0
"""Pools whose size has changed are looked for as often."""
EVERY_SECONDS: Final = 300.0
"""A pool is played anew after so long, or as its size has changed."""
MOST_RECORDS: Final = 20_000
"""Of a pool, the latest ones."""
LEAST_RECORDS: Final = 200
"""Fewer say nothing: half of them fill the caches."""
AT_ONCE: Final = 256
"""Requests of one call into native code."""
SECONDS: Final = 5.0
"""Of one core for all sizes of a pool, at most."""


@dataclass(frozen=True, slots=True)
class OutlinedPool:
    """A pool as it is now, and what is played through it."""

    measures: PoolMeasures
    model: FleetModel
    records: Sequence[RecordedRequest]

    @property
    def setups(self) -> dict[tuple[int, float], Setup]:
        """The fleets to play, by workers and times the budget; larger budgets than all blocks are those."""
        setup, today = self.model.setup, self.measures.workers
        sizes = {(today + more, 1.0) for more in MORE_WORKERS if today + more > 0}
        sizes |= {(today, factor) for factor in BUDGETS if setup.budget_blocks}
        budgets = {factor: int((setup.budget_blocks or setup.blocks) * factor) for _, factor in sizes}
        return {
            (workers, factor): replace(
                setup,
                workers=workers,
                budget_blocks=None if setup.budget_blocks is None else min(setup.blocks, budgets[factor]),
            )
            for workers, factor in sorted(sizes)
        }


class FleetOutlines:
    """Keeps the outlines of all pools of ``reports`` fresh; ``clock`` is theirs."""

    def __init__(
        self,
        fleet: FleetToSimulate,
        recorded: RecordedRequests,
        reports: CapacityReports,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._fleet = fleet
        self._recorded = recorded
        self._reports = reports
        self._clock, self._sleep = clock, sleep
        self._tried: dict[str, tuple[float, int, float]] = {}
        """When each pool was played last, and its workers and budget then."""

    async def run(self) -> None:
        """Look at the pools now and then until cancelled."""
        while True:
            await self._sleep(TICK_SECONDS)
            await self.tick()

    async def tick(self) -> None:
        """Play those pools whose turn it is."""
        reports = {one.measures.key: one.measures for one in self._reports.all()}
        self._tried = {key: tried for key, tried in self._tried.items() if key in reports}
        for measures in reports.values():
            if self._due(measures) and (pool := self._pool(measures)) is not None:
                made = await asyncio.to_thread(outlined, pool, self._clock())
                self._put(measures.key, made)

    def _due(self, measures: PoolMeasures) -> bool:
        now, size = self._clock(), (measures.workers, measures.budget)
        at, *before = self._tried.get(measures.key, (float("-inf"), 0, 0.0))
        if now - at < EVERY_SECONDS and tuple(before) == size:
            return False
        self._tried[measures.key] = (now, *size)
        return True

    def _pool(self, measures: PoolMeasures) -> OutlinedPool | None:
        """None where too little is recorded, or nothing can be played."""
        declared = self._reports.declared().get(measures.key)
        records = self._recorded.latest(measures.key, MOST_RECORDS)
        if declared is None or len(records) < LEAST_RECORDS:
            return None
        try:
            model = self._model(declared)
        except ApiError as error:
            logger.debug("pool %s is not played in outline: %s", measures.key, error)
            return None
        return OutlinedPool(measures, model, records) if model.setup.workers == measures.workers else None

    def _model(self, pool: PrefixCachePool) -> FleetModel:
        workers = [worker for worker in self._fleet.view().workers if worker.pool == pool.key]
        told = self._fleet.announced(f"{pool.metadata.namespace}/{pool.spec.model.name}")
        hellos = [hello for hello in told if hello.pool == pool.key]
        return fleet_model(pool, workers, hellos, policy=self._fleet.policy.value)

    def _put(self, pool: str, made: OutlinedSizes | None) -> None:
        """In place of the pool's last one; one that could not be made leaves none."""
        others = {key: one for key, one in self._reports.outlined.items() if key != pool and key in self._tried}
        self._reports.outlined = others if made is None else {**others, pool: made}


def outlined(pool: OutlinedPool, now: float) -> OutlinedSizes | None:
    """Play a pool's requests through all sizes; None where that takes too long, or nothing was counted."""
    records = sorted(pool.records, key=lambda record: record.at)
    load, taken = _load(records, pool.model.contract.block_size)
    since, left, ratios = taken // 2, SECONDS, dict[tuple[int, float], float]()
    for size, setup in pool.setups.items():
        began = time.monotonic()
        percent = pool.model.pool.spec.admission.min_free_block_percent
        played = load.play(setup, since=since, free_percent=percent, seconds=max(0.0, left))
        left -= time.monotonic() - began
        if played is None or not played[0]:
            return None
        ratios[size] = played[1] / played[0]
    counted = records[len(records) - taken :][since:]
    today = pool.measures.workers
    return OutlinedSizes(
        made_at=now,
        workers=today,
        budget=pool.measures.budget,
        requests=len(counted),
        served=sum(one.cached_tokens for one in counted) / max(1, sum(one.prompt_tokens for one in counted)),
        by_workers=[(workers, ratio) for (workers, factor), ratio in ratios.items() if factor == 1.0],
        by_budget=[(factor, ratio) for (workers, factor), ratio in ratios.items() if workers == today],
    )


def _load(records: Sequence[RecordedRequest], block_size: int) -> tuple[FleetLoad, int]:
    """The latest of these for which there is room, and how many these are."""
    load = FleetLoad(block_size)
    for end in range(len(records), 0, -AT_ONCE):
        some = records[max(0, end - AT_ONCE) : end]
        told = [(one.at, one.prompt_tokens, one.completion_tokens, one.cached_tokens, one.keys, b"") for one in some]
        if not load.add(told[::-1]):
            break
    return load, len(load)
