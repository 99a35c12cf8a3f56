"""Requests played through one scenario in virtual time: a heap of events over the real Fleet and modelled workers.

Frames reach the control plane ``report_lag`` after their step, in order; a State is sent each ``state_every``, each
worker at its own moment, except in long pauses. Requests of one instant come one after the other, before any worker
begins a step on them. One that has to wait for room is tried again, first come first served at each replica, whenever
anything has happened.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.simulation.placement import (
    FleetPlacement,
    Placed,
    Placement,
    ReplicasPlacement,
    Unplaced,
    replica_of,
)
from cachefleet_controlplane.simulation.run_result import Result, SimulationError, WorkBudget
from cachefleet_controlplane.simulation.simulated_fleet import MakeWorker, SimulatedWorkers
from cachefleet_controlplane.simulation.simulated_scheduler import Generation, Step
from cachefleet_controlplane.simulation.simulated_worker import SimulatedWorker
from cachefleet_controlplane.simulation.simulation_job import Figures, Scenario, percentile
from cachefleet_controlplane.simulation.workload import SimulatedRequest
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.pool.spec import PrefixCachePool

START: Final = 1000.0
"""Virtual time at which the workload begins, in seconds."""
IDLE_REPORTS: Final = 10
"""Of each worker before a request that comes when nothing is under way; before these none are made while it is so."""


@dataclass(frozen=True, slots=True)
class _Sent:
    request: SimulatedRequest
    placed: Placed


class SimulatedRun:
    """One run; ``run`` once, then ``figures``. Without a ``placement`` the control plane decides, by the scenario."""

    def __init__(
        self,
        requests: Sequence[SimulatedRequest],
        pool: PrefixCachePool,
        contract: IndexContract,
        scenario: Scenario,
        *,
        budget: WorkBudget | None = None,
        placement: Placement | None = None,
        worker: MakeWorker = SimulatedWorker,
    ) -> None:
        self._requests = requests
        self._setup = scenario.setup
        self._size = contract.block_size
        self._budget = budget or WorkBudget()
        self._now = START
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._events = 0
        self._arrivals = sorted(request.at for request in requests)
        self._came = 0
        self._lines: list[deque[SimulatedRequest]] = [deque() for _ in range(scenario.setup.replicas)]
        self._open: dict[Generation, _Sent] = {}
        self._over: set[int] = set()
        self.result = Result()
        self._fleet = SimulatedWorkers(
            pool,
            contract,
            scenario.setup,
            clock=lambda: self._now,
            budget=self._budget,
            worker=worker,
        )
        model = f"{pool.metadata.namespace}/{pool.spec.model.name}"
        policy, ahead = RoutingPolicy(scenario.policy), pool.spec.admission.max_ahead_seconds
        self._placement = placement or ReplicasPlacement(
            [
                FleetPlacement(replica.fleet, model, self._size, policy, ahead_seconds=ahead)
                for replica in self._fleet.replicas
            ]
        )

    def run(self) -> Result:
        """SimulationError where anything is not as it must be, TooMuchWorkError."""
        for request in self._requests:
            self._at(START + request.at, self._arrive, request)
        workers = self._fleet.workers.values()
        for place, worker in enumerate(workers):
            for frame in worker.opening():
                self._fleet.deliver(worker, frame)
            self._at(START + place * self._setup.state_every / len(workers), self._report, worker)
        while self._heap:
            self._now, _, act, arguments = heapq.heappop(self._heap)
            act(*arguments)
            self._share()
            self._place()
        if not self._finished or self._open or any(self._lines):
            raise SimulationError(f"{len(self._over)} of {len(self._requests)} requests were answered")
        self._fleet.check()
        return self.result

    def figures(self, since: int = 0) -> Figures:
        """Of the requests from number ``since`` on."""
        result = self.result
        counted = [one for one in self._requests if one.number >= since and one.number not in result.refused]
        prompt = sum(request.tokens for request in counted)
        queues = [result.queues[request.number] for request in counted]
        firsts = [result.first_token[request.number] for request in counted]
        return Figures(
            requests=len(counted),
            prompt_tokens=prompt,
            recomputed_tokens=prompt - self._size * sum(result.hits[request.number] for request in counted),
            queue_p50_seconds=percentile(queues, 50),
            queue_p99_seconds=percentile(queues, 99),
            ttft_p50_seconds=percentile(firsts, 50),
            ttft_p95_seconds=percentile(firsts, 95),
            refused=sum(number >= since for number in result.refused),
            preemptions=sum(result.preemptions[request.number] for request in counted),
        )

    @property
    def _finished(self) -> bool:
        return len(self._over) == len(self._requests)

    def _at(self, moment: float, act: Callable[..., None], *arguments: Any) -> None:
        self._events += 1
        heapq.heappush(self._heap, (moment, self._events, act, arguments))

    def _arrive(self, request: SimulatedRequest) -> None:
        line = self._lines[replica_of(request, len(self._lines))]
        line.append(request)
        self._came += 1
        self._place()
        if line:
            self.result.waited.add(request.number)

    def _share(self) -> None:
        """Have replicas tell each other of their requests in flight."""
        late = self._setup.share_seconds
        if self._setup.replicas == 1 or late is None:
            return
        for load in self._fleet.shared_loads():
            if late:
                self._at(self._now + late, self._fleet.pass_on, *load)
            else:
                self._fleet.pass_on(*load)

    def _place(self) -> None:
        for line in self._lines:
            self._place_line(line)

    def _place_line(self, line: deque[SimulatedRequest]) -> None:
        while line:
            request = line[0]
            placed = self._placed(request)
            if placed is Unplaced.WAITS or placed is Unplaced.BUSY:
                return
            line.popleft()
            if isinstance(placed, Placed):
                self._send(request, placed)
            else:
                self.result.refused.add(request.number)
                self._over.add(request.number)

    def _placed(self, request: SimulatedRequest) -> Placed | Unplaced:
        """REFUSED where no engine takes it when it has nothing else."""
        if request.tokens + request.outputs > self._setup.longest(self._size):
            return Unplaced.REFUSED
        self._budget.spend(len(self._fleet.workers) + len(request.keys))
        return self._placement.place(request)

    def _send(self, request: SimulatedRequest, placed: Placed) -> None:
        number, worker = request.number, self._fleet.workers[placed.worker]
        self.result.workers[number] = worker.name
        self.result.queues[number] = max(0.0, self._now - (START + request.at)) + placed.queue_seconds
        self.result.predicted[number] = placed.predicted_tokens // self._size
        generation = Generation(request.all_keys(self._size), request.tokens, request.outputs)
        self._open[generation] = _Sent(request, placed)
        self._share()
        worker.add(generation)
        if not worker.stepping:
            worker.stepping = True
            self._at(self._now, self._begin, worker)

    def _begin(self, worker: SimulatedWorker) -> None:
        step, seconds = worker.begin(self._now)
        self._at(self._now + seconds, self._end, worker, step)

    def _end(self, worker: SimulatedWorker, step: Step) -> None:
        advanced, frames = worker.end(step)
        for frame in frames:
            self._at(self._now + self._setup.report_lag, self._fleet.deliver, worker, frame)
        for generation in advanced:
            self._advanced(generation)
        if worker.busy:
            self._begin(worker)

    def _advanced(self, generation: Generation) -> None:
        sent = self._open[generation]
        if generation.said == 1:
            sent.placed.in_flight.first_token()
            self.result.first_token[sent.request.number] = self._now - (START + sent.request.at)
        if generation.over:
            del self._open[generation]
            self._answered(generation, sent)

    def _answered(self, generation: Generation, sent: _Sent) -> None:
        number = sent.request.number
        if number in self._over or generation.said != sent.request.outputs:
            raise SimulationError(f"request {number} was not answered once and whole")
        sent.placed.in_flight.finish(cached_tokens=generation.cached_tokens)
        self.result.hits[number] = generation.cached_tokens // self._size
        self.result.preemptions[number] = generation.preemptions
        self._over.add(number)

    def _report(self, worker: SimulatedWorker) -> None:
        self._at(self._now + self._setup.report_lag, self._fleet.deliver, worker, worker.state())
        if not self._finished:
            self._at(self._next_report(), self._report, worker)

    def _next_report(self) -> float:
        """A period from now; where nothing is under way, shortly before the next request."""
        every = self._setup.state_every
        later = self._now + every
        if self._open or any(self._lines):
            return later
        periods = int((START + self._arrivals[self._came] - later) / every)
        return later + every * max(0, periods - IDLE_REPORTS)
