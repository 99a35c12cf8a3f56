"""Who gets a request: the control plane's own policies, and what others do, re-stated.

*Plain* is the control plane's rule where nothing is learnt of what work and evictions cost others: an evicted token
counts as one to compute. *Random* and *round robin* know nothing. *Least loaded* is the control plane's by waiting
work. The *bounded hash* is consistent hashing with bounded loads on the prompt's beginning, as KubeAI and AIBrix
describe theirs: a ring with many points for each worker, the key's place on it, and from there the first worker whose
requests under way do not exceed the mean, this one counted, by more than a quarter. The *ideal* is one cache of all
workers' blocks that has whatever came before at once.
"""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from bench.replay_work import usable
from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from cachefleet_controlplane.simulation.placement import Placed
from cachefleet_controlplane.simulation.run_result import SimulationError
from cachefleet_controlplane.simulation.workload import SimulatedRequest
from cachefleet_controlplane.workers.worth.paid_waiting import PaidWaiting
from cachefleet_controlplane.workers.worth.pool_worth import PoolWorth

POINTS: Final = 256
"""Of each worker on the ring."""
MEAN_LOAD: Final = 1.25
HASHED_BLOCKS: Final = 2
"""Of a prompt's beginning; of Mooncake's prompts the first one is the same in all."""


class Plain(PoolWorth):
    """A pool that shows nothing."""

    def worth(self, workers: int) -> Worth:  # noqa: ARG002 - as that of a pool that does
        return UNLEARNT


class NeverPaid(PaidWaiting):
    """Waiting that pays for nothing."""

    def add(self, prefix: bytes, seconds: float, now: float) -> None:
        pass


class RandomPolicy:
    def __init__(self, workers: Sequence[str], chance: random.Random) -> None:
        self._workers = workers
        self._chance = chance

    def place(self, _: SimulatedRequest) -> Placed:
        return Placed(self._chance.choice(self._workers), _InFlight(lambda: None))


class BoundedHashPolicy:
    """See the module."""

    def __init__(self, workers: Sequence[str], *, hashed_blocks: int = HASHED_BLOCKS) -> None:
        self._workers = workers
        self._hashed = hashed_blocks
        self._ring = sorted((_place(f"{worker}/{point}"), worker) for worker in workers for point in range(POINTS))
        self._requests: Counter[str] = Counter()

    def place(self, request: SimulatedRequest) -> Placed:
        worker = self._first_below(_place(repr(request.keys[: self._hashed])))
        self._requests[worker] += 1
        return Placed(worker, _InFlight(lambda: self._requests.subtract((worker,))))

    def _first_below(self, place: int) -> str:
        bound = math.ceil((self._requests.total() + 1) / len(self._workers) * MEAN_LOAD)
        start = bisect_left(self._ring, (place, ""))
        for step in range(len(self._ring)):
            _, worker = self._ring[(start + step) % len(self._ring)]
            if self._requests[worker] < bound:
                return worker
        raise SimulationError("every worker has more than the mean")


def ideal_hits(requests: Sequence[SimulatedRequest], blocks: int, *, since: int = 0) -> int:
    """Blocks that one cache of ``blocks`` serves, least recently used out first, a prompt's tail before its head.

    To requests from number ``since`` on.
    """
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in requests:
        cached = next((place for place, key in enumerate(request.keys) if key not in held), len(request.keys))
        hits += min(cached, usable(request)) if request.number >= since else 0
        for key in reversed(request.keys):
            held[key] = None
            held.move_to_end(key)
        while len(held) > blocks:
            held.popitem(last=False)
    return hits


class _InFlight:
    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def first_token(self) -> None:
        pass

    def finish(self, *, cached_tokens: int | None = None) -> None:  # noqa: ARG002 - as a flight's
        self._ended()


def _place(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
