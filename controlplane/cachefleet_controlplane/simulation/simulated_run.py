"""Requests played through one scenario: the real Fleet, index and decisions over modelled workers, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefleet_controlplane.fleet.backend import backend
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.protocol import worker_id
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.routing.decision import Knowledge, Prompt, RoutingPolicy, Verdict
from cachefleet_controlplane.simulation.run_result import Result, SimulationError, WorkBudget
from cachefleet_controlplane.simulation.simulated_scheduler import Generation
from cachefleet_controlplane.simulation.simulated_worker import SimulatedWorker
from cachefleet_controlplane.simulation.simulation_job import Figures, Scenario, percentile
from cachefleet_controlplane.simulation.virtual_run import START, Opened, Placed, Unplaced, VirtualRun
from cachefleet_controlplane.simulation.workload import Request
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.pool.spec import PrefixCachePool

_INDEX_KEY: Final = bytes(32)
"""Seeds no key: requests bring theirs."""


class SimulatedRun(VirtualRun[Request, Generation, SimulatedWorker]):
    """One run; ``run`` once, then ``figures``."""

    def __init__(
        self,
        requests: Sequence[Request],
        pool: PrefixCachePool,
        contract: IndexContract,
        scenario: Scenario,
        budget: WorkBudget,
    ) -> None:
        super().__init__(requests, scenario.setup)
        self._budget = budget
        self._size = contract.block_size
        self._pool = pool
        self._model = f"{pool.metadata.namespace}/{pool.spec.model.name}"
        parts = backend()
        self._index = parts.index()
        fleet = Fleet(
            self._index,
            index_key=_INDEX_KEY,
            selector=parts.selector,
            clock=lambda: self._now,
            wall=lambda: self._now,
            policy=RoutingPolicy(scenario.policy),
        )
        names = [f"simulated-{number}" for number in range(scenario.setup.workers)]
        endpoints = tuple(WorkerEndpoint(name, f"http://{name}", ready=True) for name in names)
        fleet.update_pools([PoolView(pool, endpoints)])
        self.join(fleet, {name: SimulatedWorker(name, pool.key, contract, scenario.setup, budget) for name in names})
        self.result = Result()
        self._queues: dict[int, float] = {}
        self._refused: set[int] = set()
        self._preemptions: dict[int, int] = {}

    def figures(self, since: int = 0) -> Figures:
        """Of the requests from number ``since`` on."""
        counted = [one for one in self._requests if one.number >= since and one.number not in self._refused]
        prompt = sum(request.tokens for request in counted)
        queues = [self._queues[request.number] for request in counted]
        firsts = [self.result.first_token[request.number] for request in counted]
        return Figures(
            requests=len(counted),
            prompt_tokens=prompt,
            recomputed_tokens=prompt - self._size * sum(self.result.hits[request.number] for request in counted),
            queue_p50_seconds=percentile(queues, 50),
            queue_p99_seconds=percentile(queues, 99),
            ttft_p50_seconds=percentile(firsts, 50),
            ttft_p95_seconds=percentile(firsts, 95),
            refused=sum(number >= since for number in self._refused),
            preemptions=sum(self._preemptions[request.number] for request in counted),
        )

    def _placed(self, request: Request) -> tuple[Placed, Generation] | Unplaced:
        if not self._servable(request):
            return self._refuse(request)
        self._budget.spend(len(self._workers) + len(request.keys))
        prompt = Prompt(
            tokens=request.tokens,
            keys=request.packed,
            block_size=self._size,
            max_tokens=request.outputs,
            knowledge=Knowledge.EXACT if request.keys else Knowledge.LOAD,
        )
        decision = self._fleet.route(self._model, prompt)
        if decision.verdict is Verdict.QUEUE:
            return Unplaced.WAITS
        if decision.verdict is not Verdict.ROUTE:
            return self._refuse(request)
        waited = max(0.0, self._now - (START + request.at))
        self._queues[request.number] = waited + decision.queue_seconds
        inflight = self._fleet.begin(decision, prompt)
        return Placed(decision.worker, inflight, decision.predicted_tokens), self._generation(request)

    def _servable(self, request: Request) -> bool:
        """Whether an engine takes it when it has nothing else."""
        return request.tokens + request.outputs <= self._setup.longest(self._size)

    def _refuse(self, request: Request) -> Unplaced:
        self._refused.add(request.number)
        return Unplaced.REFUSED

    def _generation(self, request: Request) -> Generation:
        return Generation(request.all_keys(self._size), request.tokens, request.outputs)

    def _began(self, generation: Generation) -> bool:
        return generation.said == 1

    def _ended(self, _: SimulatedWorker, generation: Generation, opened: Opened[Request]) -> bool:
        if not generation.over:
            return False
        opened.placed.under.finish(cached_tokens=generation.cached_tokens)
        self.result.hits[opened.request.number] = generation.cached_tokens // self._size
        self._preemptions[opened.request.number] = generation.preemptions
        return True

    def _check(self) -> None:
        for worker in self._workers.values():
            if self._index.digest(worker_id(self._pool.key, worker.name)) != worker.pool.digest:
                raise SimulationError(f"the index is wrong about {worker.name}")
        self.result.preemptions = sum(one.scheduler.counters.preemptions for one in self._workers.values())
