"""The control plane's live state over modelled workers: the real Fleet, index and frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.frame_ingest import read
from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import SimulationError, WorkBudget
from cachefleet_controlplane.simulation.simulated_worker import SimulatedWorker
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.report_frames import DownFrame, Hello, Loads, Policy

MakeWorker = Callable[[str, str, IndexContract, Setup, WorkBudget], SimulatedWorker]
"""Makes a worker by its name and its pool's."""
_INDEX_KEY: Final = bytes(32)
"""Seeds no key: requests bring theirs."""


def worker_names(setup: Setup) -> list[str]:
    """The names of a fleet's workers."""
    return [f"simulated-{number}" for number in range(setup.workers)]


class SimulatedWorkers:
    """A pool's workers, ready and connected; ``clock`` gives virtual time."""

    def __init__(
        self,
        pool: PrefixCachePool,
        contract: IndexContract,
        setup: Setup,
        *,
        clock: Callable[[], float],
        budget: WorkBudget,
        worker: MakeWorker = SimulatedWorker,
    ) -> None:
        self._pool = pool.key
        self._index = BlockIndex()
        self.fleet = Fleet(self._index, index_key=_INDEX_KEY, clock=clock, wall=clock)
        names = worker_names(setup)
        endpoints = tuple(WorkerEndpoint(name, f"http://{name}", ready=True) for name in names)
        self.fleet.update_pools([PoolView(pool, endpoints)])
        self.workers = {name: worker(name, pool.key, contract, setup, budget) for name in names}
        self._connections = {name: self.fleet.connect(_Link()) for name in names}

    def deliver(self, worker: SimulatedWorker, data: bytes) -> None:
        """Take a frame of a worker's agent."""
        frame, connection = read(data), self._connections[worker.name]
        if isinstance(frame, Hello):
            self.fleet.hello(connection, frame)
        elif not isinstance(frame, Loads):
            self.fleet.receive(connection, frame)

    def check(self) -> None:
        """Compare the index with what each worker holds. SimulationError."""
        for worker in self.workers.values():
            if self._index.digest(worker_id(self._pool, worker.name)) != worker.pool.digest:
                raise SimulationError(f"the index is wrong about {worker.name}")


class _Link:
    """The way back to an agent: a stream without loss needs none."""

    def send(self, frame: DownFrame) -> None:
        if not isinstance(frame, Policy):
            raise SimulationError(f"the control plane asked for something: {frame}")

    def close(self, code: str, reason: str) -> None:
        raise SimulationError(f"the control plane closed a connection: {code}, {reason}")
