"""A workload through one policy: the product's run in virtual time, over workers made of the real agent's parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from bench.replay_policies import (
    MODEL,
    BoundedHashPolicy,
    FleetPolicy,
    NeverPaid,
    Plain,
    Policy,
    RandomPolicy,
)
from bench.replay_result import PolicyResult
from bench.replay_work import BLOCK, Request, blocks
from bench.replay_worker import INDEX_KEY, POOL, SimWorker
from cachefleet_controlplane.fleet.backend import backend
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.protocol import worker_id
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.selection.selection import Selector
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import SimulationError
from cachefleet_controlplane.simulation.virtual_run import START, Opened, Placed, Unplaced, VirtualRun
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worth.paid_waiting import PaidWaiting
from cachefleet_controlplane.workers.worth.pool_worth import PoolWorth
from cachefleet_core.native import Choice
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from tests.fakes.scheduler import Sequence as Generation

SEED: Final = 1
PLAIN: Final = "plain"
POLICIES: Final = ("cacheAware", PLAIN, "random", "roundRobin", "leastLoaded", "boundedHash")


class Replay(VirtualRun[Request, Generation, SimWorker]):
    """One run; ``run`` once."""

    result: PolicyResult

    def __init__(self, requests: Sequence[Request], setup: Setup, policy: str, *, code: Choice = "auto") -> None:
        super().__init__(requests, setup)
        chance = random.Random(SEED)
        parts = backend(code)
        self._index = parts.index()
        names = [f"replay-{number}" for number in range(setup.workers)]
        fleet = Fleet(
            self._index,
            index_key=INDEX_KEY,
            keyer=parts.code.keyer,
            selector=partial(self._selector, parts.selector),
            clock=lambda: self._now,
            wall=lambda: self._now,
        )
        fleet.update_pools([pool_view(setup, names)])
        if policy == PLAIN:
            self.learn_into(Plain())
            self.pay_into(NeverPaid())
        self.join(fleet, {name: SimWorker(name, setup, parts.code, chance) for name in names})
        self._policy = policy_named(policy, fleet, names)
        none = [0] * setup.workers
        self.result = PolicyResult(policy=policy, blocks=blocks(requests), served=none[:], computed=none[:])
        self._at(START, self._at, START, self._watch)  # after all that comes at that moment

    def run(self) -> PolicyResult:
        super().run()
        return self.result

    def _selector(self, make: Callable[[Any, Registry], Selector], index: Any, registry: Registry) -> Selector:
        self._registry = registry
        return make(index, registry)

    def learn_into(self, worth: PoolWorth) -> None:
        """Have the pool learn as ``worth`` does; before ``run``."""
        self._registry.pools[POOL].worth = worth

    def pay_into(self, paid: PaidWaiting) -> None:
        """Have waiting count as ``paid`` does; before ``run``."""
        self._registry.paid_waiting = paid

    def _watch(self) -> None:
        self.result.worst.append(max(worker.backlog(self._now) for worker in self._workers.values()))
        if not self._over:
            self._at(self._now + 1.0, self._watch)

    def _arrive(self, request: Request) -> None:
        super()._arrive(request)
        self.result.waited += bool(self._arrived) and self._arrived[-1] is request

    def _send(self, request: Request, placed: Placed, generation: Generation) -> None:
        self.result.queues.append(self._workers[placed.worker].backlog(self._now))
        super()._send(request, placed, generation)

    def _placed(self, request: Request) -> tuple[Placed, Generation] | Unplaced:
        tokens = request.tokens()
        placed = self._policy.place(request, tokens)
        return Unplaced.WAITS if placed is None else (placed, Generation(tokens, request.outputs))

    def _began(self, generation: Generation) -> bool:
        return len(generation.tokens) == generation.prompt_tokens + 1

    def _ended(self, worker: SimWorker, generation: Generation, opened: Opened[Request]) -> bool:
        if generation.finish is None:
            return False
        request, result, cached = opened.request, self.result, generation.cached_tokens or 0
        opened.placed.under.finish(cached_tokens=generation.cached_tokens)
        if request.number in self._answered or len(generation.output) != request.outputs:
            raise SimulationError(f"request {request.number} was not answered once and whole")
        place = list(self._workers).index(worker.name)
        result.served[place] += 1
        result.computed[place] += generation.prompt_tokens - cached
        result.hits[request.number] = cached // BLOCK
        result.predicted_blocks += opened.placed.predicted // BLOCK
        return True

    def _check(self) -> None:
        """The index says of every worker what its pool says."""
        for worker in self._workers.values():
            told = self._index.digest(worker_id(POOL, worker.name))
            if not told == worker.residents.digest == worker.digest():
                raise SimulationError(f"the index is wrong about {worker.name}")
        self.result.preemptions = sum(one.scheduler.counters.preemptions for one in self._workers.values())


def policy_named(name: str, fleet: Fleet, workers: list[str]) -> Policy:
    """One of POLICIES."""
    if name == "random":
        return RandomPolicy(workers, random.Random(SEED))
    if name == "boundedHash":
        return BoundedHashPolicy(workers)
    return FleetPolicy(fleet, RoutingPolicy.CACHE_AWARE if name == PLAIN else RoutingPolicy(name))


def pool_view(setup: Setup, workers: Sequence[str]) -> PoolView:
    """The declared pool, with its workers ready."""
    namespace, name = POOL.split("/")
    declared: PrefixCachePool = read_pool(
        {
            "apiVersion": "cachefleet.io/v1alpha1",
            "kind": "PrefixCachePool",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "model": {"name": MODEL, "source": MODEL, "weightsMiB": 10},
                "engine": {"image": "vllm", "blockSize": BLOCK, "maxModelLen": setup.model_len},
                "device": {"resource": "nvidia.com/gpu", "memoryMiB": 8192, "activationMiB": 100, "floorMiB": 100},
            },
        }
    )
    return PoolView(declared, tuple(WorkerEndpoint(worker, f"http://{worker}", ready=True) for worker in workers))
