"""A fleet in outline, for the hit curve's benchmark: where requests would go and what they would find, in seconds.

Each worker is a least-recently-used set of idle blocks within its budget, the blocks that its requests use, and the
time at which it has computed what it was sent. A request goes where its wait, what is left to compute and a step for
each batch of it take least; of workers within TIE of the least to the one that holds most of it, then the one with
fewest requests, then the one used longest ago. So it follows routing where a curve of distances cannot, at a
thousandth of a simulation's time, but knows no reports, no eviction's worth, no waiting that pays for copies, and no
steps shared with answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import takewhile
from typing import Final

from bench.replay_work import BLOCK, usable
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.workload import SimulatedRequest

TIE: Final = 0.05
"""Costs within this share of the least are a tie, as for decisions."""


@dataclass(slots=True)
class OutlineWorker:
    """Blocks of one worker by key: in use, by how many requests, and idle, least recently used first."""

    number: int
    setup: Setup
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    used: dict[int, int] = field(default_factory=dict)
    free_at: float = 0.0
    """When it has computed all prompts that it was sent."""
    requests: int = 0
    last: int = 0
    """Number of the last request that it was sent."""

    def held(self, request: SimulatedRequest) -> int:
        """Blocks of a prompt that a hit would have."""
        keys = request.keys[: usable(request)]
        return sum(1 for _ in takewhile(lambda key: key in self.used or key in self.idle, keys))

    def seconds(self, request: SimulatedRequest, held: int) -> float:
        """What the request costs here: its wait, its prompt, and the steps of both."""
        rate, batch = self.setup.prefill_tokens_per_second, self.setup.batched_tokens
        waiting = max(0.0, self.free_at - request.at)
        left = request.tokens - BLOCK * held
        return waiting + left / rate + self.setup.inter_token_seconds * -(-(left + waiting * rate) // batch)

    def take(self, request: SimulatedRequest, held: int) -> float:
        """Compute a request; when it ends."""
        for key in request.keys:
            self.idle.pop(key, None)
            self.used[key] = self.used.get(key, 0) + 1
        self._evict(self.setup.blocks - len(self.used))
        left = (request.tokens - BLOCK * held) / self.setup.prefill_tokens_per_second
        self.free_at = max(request.at, self.free_at) + left
        self.requests += 1
        self.last = request.number + 1
        return self.free_at + self.setup.inter_token_seconds * request.outputs

    def leave(self, request: SimulatedRequest) -> None:
        """A request has ended: its blocks are idle, the last one evicted first."""
        self.requests -= 1
        for key in reversed(request.all_keys(BLOCK)[len(request.keys) :]):
            if key not in self.used:
                self._rest(key)
        for key in reversed(request.keys):
            self.used[key] -= 1
            if not self.used[key]:
                del self.used[key]
                self._rest(key)
        self._evict(self.setup.blocks if self.setup.budget_blocks is None else self.setup.budget_blocks)

    def _rest(self, key: int) -> None:
        self.idle[key] = None
        self.idle.move_to_end(key)

    def _evict(self, room: int) -> None:
        while len(self.idle) > max(0, room):
            self.idle.popitem(last=False)


def outlined(requests: Sequence[SimulatedRequest], setup: Setup) -> float:
    """The hit ratio, of all prompt tokens, of such a fleet over requests in the order of their arrival."""
    workers = [OutlineWorker(number, setup) for number in range(setup.workers)]
    ends: list[tuple[float, int, OutlineWorker, SimulatedRequest]] = []
    hits = 0
    for request in requests:
        while ends and ends[0][0] <= request.at:
            _, _, worker, ended = heappop(ends)
            worker.leave(ended)
        worker, held = _chosen(workers, request)
        hits += held
        heappush(ends, (worker.take(request, held), request.number, worker, request))
    return BLOCK * hits / sum(request.tokens for request in requests)


def _chosen(workers: Sequence[OutlineWorker], request: SimulatedRequest) -> tuple[OutlineWorker, int]:
    """The worker of a request, and the blocks of it there."""
    held = [worker.held(request) for worker in workers]
    costs = [worker.seconds(request, blocks) for worker, blocks in zip(workers, held, strict=True)]
    bound = min(costs) * (1 + TIE)
    tied = [place for place, cost in enumerate(costs) if cost <= bound]
    best = min(tied, key=lambda place: (-held[place], workers[place].requests, workers[place].last, place))
    return workers[best], held[best]
