"""A workload through one policy: the product's simulation, watched for what requests met on their workers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from bench.replay_policies import BoundedHashPolicy, NeverPaid, Plain, RandomPolicy
from bench.replay_result import PolicyResult
from bench.replay_work import BLOCK, blocks
from bench.replay_worker import MeasuredWorker
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.placement import Placed, Placement
from cachefleet_controlplane.simulation.run_result import SimulationError
from cachefleet_controlplane.simulation.simulated_fleet import worker_names
from cachefleet_controlplane.simulation.simulated_run import START, SimulatedRun
from cachefleet_controlplane.simulation.simulation_job import Scenario
from cachefleet_controlplane.simulation.workload import SimulatedRequest
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worth.paid_waiting import PaidWaiting
from cachefleet_controlplane.workers.worth.pool_worth import PoolWorth
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.pool.spec import PrefixCachePool, read_pool

SEED: Final = 1
PLAIN: Final = "plain"
POLICIES: Final = ("cacheAware", PLAIN, "random", "roundRobin", "leastLoaded", "boundedHash")
CONTRACT: Final = IndexContract(weights="replay", tokenizer="sha256:aa", block_size=BLOCK)
POOL: Final = "default/replay"


class Replay(SimulatedRun):
    """One run; ``run`` once."""

    result: PolicyResult

    def __init__(self, requests: Sequence[SimulatedRequest], setup: Setup, policy: str) -> None:
        scenario = Scenario(setup=setup, policy=policy if policy in set(RoutingPolicy) else RoutingPolicy.CACHE_AWARE)
        super().__init__(
            requests,
            replay_pool(setup),
            CONTRACT,
            scenario,
            placement=peer_placement(policy, worker_names(setup)),
            worker=MeasuredWorker,
        )
        if policy == PLAIN:
            self.learn_into(Plain())
            self.pay_into(NeverPaid())
        self.result = PolicyResult(policy=policy, blocks=blocks(requests))
        self._at(START, self._at, START, self._watch)  # after all that comes at that moment

    def run(self) -> PolicyResult:
        super().run()
        if self.result.refused:
            raise SimulationError(f"request {min(self.result.refused)} was refused")
        return self.result

    @property
    def registry(self) -> Registry:
        """The pools and workers of the simulated control plane."""
        return self._fleet.fleet._registry  # noqa: SLF001 - what is replaced here, the product never replaces

    def learn_into(self, worth: PoolWorth) -> None:
        """Have the pool learn as ``worth`` does; before ``run``."""
        self.registry.pools[POOL].worth = worth

    def pay_into(self, paid: PaidWaiting) -> None:
        """Have waiting count as ``paid`` does; before ``run``."""
        self.registry.paid_waiting = paid

    def _watch(self) -> None:
        self.result.worst.append(max(worker.backlog(self._now) for worker in self._fleet.workers.values()))
        if not self._finished:
            self._at(self._now + 1.0, self._watch)

    def _send(self, request: SimulatedRequest, placed: Placed) -> None:
        self.result.backlogs.append(self._fleet.workers[placed.worker].backlog(self._now))
        super()._send(request, placed)


def peer_placement(policy: str, workers: list[str]) -> Placement | None:
    """What decides by one of POLICIES; None for the control plane."""
    if policy == "random":
        return RandomPolicy(workers, random.Random(SEED))
    return BoundedHashPolicy(workers) if policy == "boundedHash" else None


def replay_pool(setup: Setup, *, ahead_seconds: float = 0.0) -> PrefixCachePool:
    """The declared pool; ``ahead_seconds`` is its ``admission.maxAheadSeconds``."""
    namespace, name = POOL.split("/")
    return read_pool(
        {
            "apiVersion": "cachefleet.io/v1alpha1",
            "kind": "PrefixCachePool",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "model": {"name": name, "source": name, "weightsMiB": 10},
                "engine": {"image": "vllm", "blockSize": BLOCK, "maxModelLen": setup.model_len},
                "admission": {"maxAheadSeconds": ahead_seconds},
                "device": {"resource": "nvidia.com/gpu", "memoryMiB": 8192, "activationMiB": 100, "floorMiB": 100},
            },
        }
    )
