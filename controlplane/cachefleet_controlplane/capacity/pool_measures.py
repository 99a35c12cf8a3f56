"""What the workers of a pool have and do now, as far as a curve of its hit ratio needs it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from cachefleet_controlplane.routing.throughput import DEFAULT_TOKENS_PER_SECOND
from cachefleet_controlplane.workers.views import FleetView
from cachefleet_core.budget import MIB, RESERVED_BLOCKS, budget_blocks
from cachefleet_core.fleet_status.pool_facts import PoolFacts
from cachefleet_core.fleet_status.worker_facts import Load, WorkerFacts
from cachefleet_core.pool.spec import PoolSpec, PrefixCachePool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMeasures:
    """A pool's workers, each with all its ranks; sizes are in blocks."""

    key: str
    workers: int
    """Ready ones that report their load."""
    replicas: int
    """Workers that its spec asks for."""
    budget: float
    """Idle blocks that each may keep."""
    total: float
    """Blocks of each."""
    used: float
    """Blocks that running requests use, over all workers."""
    held: float
    """Blocks that all hold, each copy counted."""
    duplicated: float = 0.0
    """Share of these that are copies of another worker's; over all pools, as the index tells."""
    budget_mib: int = 0
    """Of each device; 0 where nothing bounds the engines."""
    most_budget: float = 0.0
    """Idle blocks that each may keep at most, without taking room from running requests, or from a longest one."""
    block_mib: float = 0.0
    """Of each device, for one of a worker's blocks; 0 where the engines do not tell."""
    worker_hour: float | None = None
    """Price of one worker's devices for an hour."""
    prefill_rate: float = DEFAULT_TOKENS_PER_SECOND
    """Prompt tokens a second that each computes, as half of them exceed."""
    rate_measured: bool = False
    waiting_tokens: int = 0
    """Prompt tokens sent to all workers and not computed yet."""
    backlog_seconds: float = 0.0
    """How long these take, by the mean over the workers."""
    queued_requests: int = 0
    """Requests for its model that wait for room, or for a worker."""
    asked_rate: float = 0.0
    """Prompt tokens a second that its engines looked up, whoever sent them; 0 where none tells."""
    objective: float | None = None
    """The hit ratio asked for."""
    objective_missed: bool = False
    """Whether enough was looked up, and less was served than that."""

    @property
    def own(self) -> float:
        """What the caches hold when they are full: idle blocks of each, and those of running requests."""
        return self.room(self.workers, self.budget)

    def room(self, workers: float, budget: float) -> float:
        """Blocks that so many workers with such a budget hold under today's requests."""
        return min(workers * self.total, workers * budget + self.used)

    def budget_of(self, factor: float) -> float:
        """Idle blocks of each worker with so many times the budget."""
        return min(self.total, self.budget * factor)

    def mib_of(self, budget: float) -> int:
        """A budget of so many idle blocks of each worker, in MiB of each device; 0 where nothing bounds the engines."""
        return round(budget * self.block_mib) if self.budget_mib else 0


def pool_measures(view: FleetView, declared: Callable[[str], PrefixCachePool | None]) -> list[PoolMeasures]:
    """Of each pool whose workers tell enough, by the specs that are ``declared``."""
    copies = 1 - view.index.keys / view.index.held if view.index.held else 0.0
    members: dict[str, list[WorkerFacts]] = {}
    for worker in view.workers:
        if worker.ready and worker.load is not None and worker.load.blocks_total:
            members.setdefault(worker.pool, []).append(worker)
    return [
        _of_pool(pool, members[pool.key], spec, duplicated=min(max(copies, 0.0), 0.99))
        for pool in view.pools
        if pool.key in members and (spec := declared(pool.key)) is not None
    ]


def _of_pool(
    pool: PoolFacts, workers: Sequence[WorkerFacts], declared: PrefixCachePool, *, duplicated: float
) -> PoolMeasures:
    loads = [worker.load for worker in workers if worker.load is not None]
    count = len({worker.name for worker in workers})
    ranks = len(workers) / count
    rates = [load.prefill_tokens_per_second for load in loads if load.prefill_tokens_per_second]
    bounded = all(_bounded(worker) for worker in workers)
    block_bytes = max(worker.block_bytes for worker in workers)
    total = median(load.blocks_total for load in loads)
    budget = budget_blocks(declared.spec, block_bytes=block_bytes, total=round(total)) if bounded else total
    used = sum(map(_used, loads))
    return PoolMeasures(
        key=pool.key,
        workers=count,
        replicas=pool.replicas,
        budget=budget * ranks,
        total=total * ranks,
        used=used,
        held=sum(worker.held_blocks for worker in workers),
        duplicated=duplicated,
        budget_mib=pool.budget_mib if bounded else 0,
        most_budget=max(0.0, total - max(used / len(loads), _longest(declared.spec))) * ranks,
        block_mib=block_bytes / MIB / ranks,
        worker_hour=_worker_hour(declared.spec, ranks),
        prefill_rate=(median(rates) if rates else DEFAULT_TOKENS_PER_SECOND) * ranks,
        rate_measured=bool(rates),
        waiting_tokens=sum(worker.waiting_tokens for worker in workers),
        backlog_seconds=sum(worker.backlog_seconds or 0.0 for worker in workers) / len(workers),
        queued_requests=pool.queued_requests + pool.unserved_requests,
        asked_rate=pool.hit_ratio.queried_tokens / pool.hit_ratio.window_seconds
        if pool.hit_ratio.queried_tokens
        else 0.0,
        objective=pool.hit_ratio.objective,
        objective_missed=pool.hit_ratio.missed,
    )


def _longest(spec: PoolSpec) -> int:
    """Blocks of a request of the greatest length, and the one that vLLM keeps."""
    return -(-spec.engine.max_model_len // spec.block_size) + RESERVED_BLOCKS


def _worker_hour(spec: PoolSpec, ranks: float) -> float | None:
    price = spec.pricing.gpu_hour
    return None if price is None else price * spec.engine.tensor_parallel_size * ranks


def _used(load: Load) -> int:
    """Blocks of running requests: free ones count idle cached ones in."""
    return max(0, load.blocks_total - load.blocks_free)


def _bounded(worker: WorkerFacts) -> bool:
    """Whether a plugin holds the engine to its budget."""
    return any(one.feature == "budget" and one.mode != "off" for one in worker.capabilities)
