"""The live state of a control plane's replicas over modelled workers: the real Fleet, index and frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Raw

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
from cachefleet_core.report_frames import DownFrame, Hello, Loads, PassedLoads, Policy, Share, SharedLoad, encode

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
        names = worker_names(setup)
        endpoints = tuple(WorkerEndpoint(name, f"http://{name}", ready=True) for name in names)
        self.replicas = [_Replica(pool, endpoints, clock) for _ in range(setup.replicas)]
        self.workers = {name: worker(name, pool.key, contract, setup, budget) for name in names}

    @property
    def fleet(self) -> Fleet:
        """The first replica's."""
        return self.replicas[0].fleet

    def deliver(self, worker: SimulatedWorker, data: bytes) -> None:
        """Take a frame of a worker's agent."""
        for replica in self.replicas:
            replica.deliver(worker.name, data)

    def shared_loads(self) -> list[tuple[int, str, bytes]]:
        """What replicas, by their numbers, now tell others of their requests in flight to workers."""
        return [(number, *load) for number, replica in enumerate(self.replicas) for load in replica.shared_loads()]

    def pass_on(self, sender: int, worker: str, load: bytes) -> None:
        """As the agent of a worker does with what one replica tells."""
        frame = encode(PassedLoads((Raw(load),)))
        for number, replica in enumerate(self.replicas):
            if number != sender:
                replica.deliver(worker, frame)

    def check(self) -> None:
        """Compare the indexes with what each worker holds. SimulationError."""
        for replica in self.replicas:
            replica.check(self.workers.values())


class _Replica:
    """One replica of the control plane, and its connections by worker."""

    def __init__(
        self, pool: PrefixCachePool, endpoints: tuple[WorkerEndpoint, ...], clock: Callable[[], float]
    ) -> None:
        self._pool = pool.key
        self._index = BlockIndex()
        self.fleet = Fleet(self._index, index_key=_INDEX_KEY, clock=clock, wall=clock)
        self.fleet.update_pools([PoolView(pool, endpoints)])
        self._links = {endpoint.name: _Link() for endpoint in endpoints}
        self._connections = {name: self.fleet.connect(link) for name, link in self._links.items()}

    def deliver(self, worker: str, data: bytes) -> None:
        frame, connection = read(data), self._connections[worker]
        if isinstance(frame, Hello):
            self.fleet.hello(connection, frame)
        elif isinstance(frame, Loads):
            self.fleet.hear(connection, frame)
        else:
            self.fleet.receive(connection, frame)

    def shared_loads(self) -> list[tuple[str, bytes]]:
        self.fleet.tell_others()
        return [(name, load) for name, link in self._links.items() for load in link.taken()]

    def check(self, workers: Iterable[SimulatedWorker]) -> None:
        for worker in workers:
            if self._index.digest(worker_id(self._pool, worker.name)) != worker.pool.digest:
                raise SimulationError(f"the index is wrong about {worker.name}")


class _Link:
    """The way back to an agent: a stream without loss needs it for load that replicas share alone."""

    def __init__(self) -> None:
        self._loads: list[bytes] = []

    def send(self, frame: DownFrame) -> None:
        if isinstance(frame, SharedLoad):
            self._loads.append(encode(frame))
        elif not isinstance(frame, Policy | Share):
            raise SimulationError(f"the control plane asked for something: {frame}")

    def taken(self) -> list[bytes]:
        loads, self._loads = self._loads, []
        return loads

    def close(self, code: str, reason: str) -> None:
        raise SimulationError(f"the control plane closed a connection: {code}, {reason}")
