"""A workload through one policy in virtual time: a heap of events, the real Fleet and index, and worker models.

Frames reach the control plane ``report_lag`` after their step, in order; a State is sent each ``state_every``, each
worker at its own moment. Requests of one instant come one after the other, before any worker begins a step on them.
One that has to wait for room is tried again, first come first served, whenever anything has happened.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from bench.replay_policies import (
    MODEL,
    BoundedHashPolicy,
    FleetPolicy,
    NeverPaid,
    Placed,
    Plain,
    Policy,
    RandomPolicy,
)
from bench.replay_work import BLOCK, Request, blocks
from bench.replay_worker import INDEX_KEY, POOL, ReplayError, Setup, SimWorker
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.frame_ingest import read
from cachefleet_controlplane.index.protocol import worker_id
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.selection.selection import Selector
from cachefleet_controlplane.wiring import backend
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worth.paid_waiting import PaidWaiting
from cachefleet_controlplane.workers.worth.pool_worth import PoolWorth
from cachefleet_core.native import Choice
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_core.report_frames import DownFrame, Hello
from cachefleet_core.report_frames import Policy as PoolPolicy
from tests.fakes.scheduler import Sequence as Generation
from tests.fakes.scheduler import Step

START: Final = 1000.0
SEED: Final = 1
PLAIN: Final = "plain"
POLICIES: Final = ("cacheAware", PLAIN, "random", "roundRobin", "leastLoaded", "boundedHash")


@dataclass(slots=True)
class Result:
    """What a run gave. Times are in seconds, one for each request or, of ``worst``, for each second."""

    policy: str
    blocks: int
    predicted_blocks: int = 0
    queues: list[float] = field(default_factory=list)
    """Work that a request met on its worker, as seconds of prefill."""
    worst: list[float] = field(default_factory=list)
    """The most that any worker had."""
    first_token: dict[int, float] = field(default_factory=dict)
    """From a request's arrival to its first token, by its number."""
    hits: dict[int, int] = field(default_factory=dict)
    """Blocks served from cache, by the request's number."""
    served: list[int] = field(default_factory=list)
    """How many each worker answered."""
    computed: list[int] = field(default_factory=list)
    """Prompt tokens that each worker computed."""
    waited: int = 0
    """Requests that had to wait for room."""
    preemptions: int = 0
    seconds: float = 0.0

    @property
    def first_tokens(self) -> list[float]:
        return list(self.first_token.values())

    @property
    def hit_blocks(self) -> int:
        return sum(self.hits.values())

    @property
    def hit_ratio(self) -> float:
        return self.hit_blocks / self.blocks


@dataclass(slots=True)
class _Open:
    request: Request
    placed: Placed


class Replay:
    """One run; ``run`` once."""

    def __init__(self, requests: Sequence[Request], setup: Setup, policy: str, *, code: Choice = "auto") -> None:
        self._requests = requests
        self._setup = setup
        self._now = START
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        chance = random.Random(SEED)
        parts = backend(code)
        self._index = parts.index()
        names = [f"replay-{number}" for number in range(setup.workers)]
        self._fleet = Fleet(
            self._index,
            index_key=INDEX_KEY,
            keyer=parts.code.keyer,
            selector=partial(self._selector, parts.selector),
            clock=lambda: self._now,
            wall=lambda: self._now,
        )
        self._fleet.update_pools([pool_view(setup, names)])
        if policy == PLAIN:
            self.learn_into(Plain())
            self.pay_into(NeverPaid())
        self._workers = {name: SimWorker(name, setup, parts.code, chance) for name in names}
        self._connections = {name: self._fleet.connect(_Link()) for name in names}
        self._policy = policy_named(policy, self._fleet, names)
        self._arrived: deque[Request] = deque()
        self._open: dict[Generation, _Open] = {}
        self._answered: set[int] = set()
        self.result = Result(policy, blocks(requests), served=[0] * setup.workers, computed=[0] * setup.workers)

    def _selector(self, make: Callable[[Any, Registry], Selector], index: Any, registry: Registry) -> Selector:
        self._registry = registry
        return make(index, registry)

    def learn_into(self, worth: PoolWorth) -> None:
        """Have the pool learn as ``worth`` does; before ``run``."""
        self._registry.pools[POOL].worth = worth

    def pay_into(self, paid: PaidWaiting) -> None:
        """Have waiting count as ``paid`` does; before ``run``."""
        self._registry.paid_waiting = paid

    def run(self) -> Result:
        """ReplayError where anything is not as it must be."""
        for request in self._requests:
            self._at(START + request.at, self._arrive, request)
        for place, worker in enumerate(self._workers.values()):
            for frame in worker.stream.opening():
                self._deliver(worker, frame)
            self._at(START + place * self._setup.state_every / len(self._workers), self._report, worker)
        self._at(START, self._watch)
        while self._heap:
            self._now, _, act, given = heapq.heappop(self._heap)
            act(*given)
            if self._arrived:
                self._place()
        self._check()
        self.result.seconds = self._now - START
        return self.result

    @property
    def _over(self) -> bool:
        return len(self._answered) == len(self._requests)

    def _at(self, moment: float, act: Callable[..., None], *given: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (moment, self._numbers, act, given))

    def _arrive(self, request: Request) -> None:
        self._arrived.append(request)
        self._place()
        self.result.waited += bool(self._arrived) and self._arrived[-1] is request

    def _place(self) -> None:
        while self._arrived:
            request = self._arrived[0]
            tokens = request.tokens()
            placed = self._policy.place(request, tokens)
            if placed is None:
                return
            self._arrived.popleft()
            self._send(request, tokens, placed)

    def _send(self, request: Request, tokens: list[int], placed: Placed) -> None:
        worker = self._workers[placed.worker]
        self.result.queues.append(worker.backlog(self._now))
        generation = Generation(tokens, request.outputs, arrived=START + request.at)
        self._open[generation] = _Open(request, placed)
        worker.add(generation)
        if not worker.stepping:
            worker.stepping = True
            self._at(self._now, self._begin, worker)

    def _begin(self, worker: SimWorker) -> None:
        step, seconds = worker.begin(self._now)
        self._at(self._now + seconds, self._end, worker, step)

    def _end(self, worker: SimWorker, step: Step) -> None:
        advanced, frames = worker.end(step, self._now)
        for frame in frames:
            self._at(self._now + self._setup.report_lag, self._deliver, worker, frame)
        for generation in advanced:
            self._advanced(worker, generation)
        if worker.scheduler.busy:
            self._begin(worker)

    def _advanced(self, worker: SimWorker, generation: Generation) -> None:
        opened = self._open[generation]
        if len(generation.tokens) == generation.prompt_tokens + 1:
            opened.placed.under.first_token()
            self.result.first_token[opened.request.number] = self._now - generation.arrived
        if generation.finish is not None:
            opened.placed.under.finish(cached_tokens=generation.cached_tokens)
            self._finished(worker, generation, self._open.pop(generation))

    def _finished(self, worker: SimWorker, generation: Generation, opened: _Open) -> None:
        request, result, cached = opened.request, self.result, generation.cached_tokens or 0
        if request.number in self._answered or len(generation.output) != request.outputs:
            raise ReplayError(f"request {request.number} was not answered once and whole")
        self._answered.add(request.number)
        place = list(self._workers).index(worker.name)
        result.served[place] += 1
        result.computed[place] += generation.prompt_tokens - cached
        result.hits[request.number] = cached // BLOCK
        result.predicted_blocks += opened.placed.predicted // BLOCK

    def _report(self, worker: SimWorker) -> None:
        self._at(self._now + self._setup.report_lag, self._deliver, worker, worker.state())
        if not self._over:
            self._at(self._now + self._setup.state_every, self._report, worker)

    def _watch(self) -> None:
        self.result.worst.append(max(worker.backlog(self._now) for worker in self._workers.values()))
        if not self._over:
            self._at(self._now + 1.0, self._watch)

    def _deliver(self, worker: SimWorker, data: bytes) -> None:
        frame, connection = read(data), self._connections[worker.name]
        if isinstance(frame, Hello):
            self._fleet.hello(connection, frame)
        else:
            self._fleet.receive(connection, frame)

    def _check(self) -> None:
        """All were answered, and the index says of every worker what its pool says."""
        if not self._over or self._open or self._arrived:
            raise ReplayError(f"{len(self._answered)} of {len(self._requests)} requests were answered")
        for worker in self._workers.values():
            told = self._index.digest(worker_id(POOL, worker.name))
            if not told == worker.residents.digest == worker.digest():
                raise ReplayError(f"the index is wrong about {worker.name}")
        self.result.preemptions = sum(one.scheduler.counters.preemptions for one in self._workers.values())


class _Link:
    """The way back to an agent: a stream without loss needs none."""

    def send(self, frame: DownFrame) -> None:
        if not isinstance(frame, PoolPolicy):
            raise ReplayError(f"the control plane asked for something: {frame}")

    def close(self, code: str, reason: str) -> None:
        raise ReplayError(f"the control plane closed a connection: {code}, {reason}")


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
