"""The tables of ``cachefleet top``: pools, then workers, with bars of what they hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from cachefleet_local.cli.listing import Column, Output, listing
from cachefleet_local.cli.output.columns import share, worker_load, worker_state

if TYPE_CHECKING:
    from cachefleet_core.fleet_status.pool_facts import PoolFacts
    from cachefleet_core.fleet_status.worker_facts import Load, WorkerFacts

T = TypeVar("T", int, float)

BAR: Final = 20
MIB: Final = 1 << 20
_WHOLE: Final = 10
"""MiB from which on no tenths are shown."""
_FULL, _HELD, _FREE = "#", "=", "."
Order = Callable[["WorkerFacts"], object]

ORDERS: Final[Mapping[str, tuple[str, Order]]] = {
    "n": ("name", lambda worker: worker.id),
    "r": ("running", lambda worker: -_figure(worker, lambda load: load.running)),
    "w": ("waiting", lambda worker: -_figure(worker, lambda load: load.waiting)),
    "b": ("held blocks", lambda worker: -worker.held_blocks),
    "h": ("hit ratio", lambda worker: -_figure(worker, lambda load: load.hit_ratio or 0.0)),
    "a": ("age of the report", lambda worker: -(worker.report_age_seconds or 0.0)),
}
"""By the key that is pressed: the words for an order of workers, and the order."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker, and its pool's budget in MiB."""

    worker: WorkerFacts
    budget: int


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool and its workers."""

    pool: PoolFacts
    workers: Sequence[WorkerFacts]

    @property
    def listed(self) -> list[WorkerFacts]:
        """The workers that the source of pools lists."""
        return [worker for worker in self.workers if worker.listed]

    @property
    def idle(self) -> int | None:
        """Bytes of idle cached blocks; None where no worker's engine reports them."""
        idle = [worker.idle_bytes for worker in self.listed if worker.idle_bytes is not None]
        return sum(idle) if idle else None

    def load(self, read: Callable[[Load], int]) -> int:
        """The sum of a figure of its workers' loads."""
        return sum(_figure(worker, read) for worker in self.workers)


def _figure(worker: WorkerFacts, read: Callable[[Load], T]) -> T | int:
    """A figure of a worker's load, 0 before its first report."""
    return read(worker.load) if worker.load else 0


def blocks_bar(worker: WorkerFacts, length: int = BAR) -> str:
    """A worker's blocks: # in use by running requests, = idle and cached, . free."""
    load = worker.load
    if load is None or not load.blocks_total:
        return ""
    idle = min(load.blocks_idle or 0, load.blocks_free)
    used, total = load.blocks_total - load.blocks_free, load.blocks_total
    first, second = round(length * used / total), round(length * (used + idle) / total)
    return f"[{_FULL * first}{_HELD * (second - first)}{_FREE * (length - second)}]"


def _of_budget(idle: int | None, budget: int) -> str | None:
    """What idle cached blocks take, in bytes, against the admitted budget in MiB."""
    return f"{'?' if idle is None else _mib(idle)}/{budget:,} MiB" if budget else None


def _mib(size: int) -> str:
    return f"{size / MIB:,.{0 if size >= _WHOLE * MIB else 1}f}"


def _freshness(worker: WorkerFacts) -> str:
    if worker.report_age_seconds is None:
        return "never"
    return f"{worker.report_age_seconds:.1f} s" + (" stale" if worker.stale else "")


def _objective(pool: PoolFacts) -> str:
    shown, objective = share(pool.hit_ratio.value) or "-", share(pool.hit_ratio.objective)
    return shown if objective is None else f"{shown}/{objective}"


def _of_worker(title: str, read: Callable[[WorkerFacts], object], *, right: bool = True) -> Column:
    return Column(title, lambda row: read(row.worker), right=right)


_POOLS: Final = (
    Column("POOL", lambda row: row.pool.key),
    Column("MODEL", lambda row: row.pool.model),
    Column("READY", lambda row: f"{row.pool.workers.ready}/{row.pool.workers.total}", right=True),
    Column("RUNNING", lambda row: row.load(lambda load: load.running), right=True),
    Column("WAITING", lambda row: row.load(lambda load: load.waiting), right=True),
    Column("HELD", lambda row: sum(worker.held_blocks for worker in row.workers), right=True),
    Column("IDLE/BUDGET", lambda row: _of_budget(row.idle, row.pool.budget_mib * len(row.listed)), right=True),
    Column("HIT RATIO/OBJECTIVE", lambda row: _objective(row.pool), right=True),
)
_WORKERS: Final = (
    _of_worker("WORKER", lambda worker: worker.id, right=False),
    _of_worker("STATE", worker_state, right=False),
    _of_worker("RUNNING", worker_load(lambda load: load.running)),
    _of_worker("WAITING", worker_load(lambda load: load.waiting)),
    _of_worker("BLOCKS", blocks_bar, right=False),
    _of_worker("HELD", lambda worker: worker.held_blocks),
    Column("IDLE/BUDGET", lambda row: _of_budget(row.worker.idle_bytes, row.budget), right=True),
    _of_worker("HITS", worker_load(lambda load: share(load.hit_ratio))),
    _of_worker("REPORT", _freshness),
)


def screen(pools: Sequence[PoolFacts], workers: Sequence[WorkerFacts], key: str = "n") -> str:
    """Pools, and workers in the order of a key."""
    budgets = {pool.key: pool.budget_mib for pool in pools}
    ordered = sorted(workers, key=lambda worker: (ORDERS[key][1](worker), worker.id))
    of_pools = [PoolRow(pool, [worker for worker in workers if worker.pool == pool.key]) for pool in pools]
    of_workers = [WorkerRow(worker, budgets.get(worker.pool, 0)) for worker in ordered]
    return "\n".join(
        (
            listing(of_pools, _POOLS, Output.TABLE) if pools else "no pools",
            "",
            listing(of_workers, _WORKERS, Output.TABLE) if workers else "no workers",
        )
    )
