"""How many workers a pool should have, and why: for autoscalers, which own the loop. Pure: time is an argument.

The smallest number whose computed tokens a second, which fall as the caches grow with it, are at most HEADROOM of what
so many workers compute, whose hit ratio reaches the pool's objective where any number in reach does, and that has no
queue: while requests wait for longer than QUEUE_SECONDS, one more than there are.

It rises at once and falls late: only to the most that was wanted within HOLD_SECONDS, and only where the fewer would
have had more headroom still (CALM). So load that sways about a bound raises the number once. Who has just begun to
look takes today's number for one that was wanted: a control plane that restarts takes no worker away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cachefleet_controlplane.capacity.hit_curve import CurvePoint

HEADROOM: Final = 0.7
"""Of the rate at which workers compute prompts: queues grow long beyond."""
CALM: Final = 0.9
"""Of HEADROOM: what fewer workers may be asked to compute."""
QUEUE_SECONDS: Final = 2.0
"""Of prompts that wait on each worker, by its measured rate."""
HOLD_SECONDS: Final = 900.0
"""For so long a number that was wanted is not gone below."""
MOST_MORE: Final = 2.0
"""Times as many workers as there are, at most, and SOME_MORE."""
SOME_MORE: Final = 4


class ScalingReason(StrEnum):
    """What the number rests on."""

    QUEUE = "queue"
    """Requests wait."""
    TOKENS = "tokens"
    """So many are needed to compute what their caches do not serve."""
    CACHE = "cache"
    """Fewer would compute fast enough, and miss the objective of the hit ratio."""
    FLOOR = "floor"
    """One is enough, or there is nothing to judge by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDemand:
    """What is asked of a pool."""

    workers: int
    """There are."""
    rate: float
    """Prompt tokens a second that one computes."""
    backlog_seconds: float = 0.0
    """Of prompts that wait on each worker, by the mean."""
    queued_requests: int = 0
    """That have no room on any."""
    objective: float | None = None
    """The hit ratio asked for."""


@dataclass(frozen=True, slots=True)
class Desired:
    """A number of workers and its reason."""

    workers: int
    reason: ScalingReason


def wanted(demand: PoolDemand, at: Callable[[int], CurvePoint], *, headroom: float = HEADROOM) -> Desired:
    """What the load of now asks for; ``at`` tells of so many workers."""
    most = max(1, int(demand.workers * MOST_MORE) + SOME_MORE)
    points = [at(number) for number in range(1, most + 1)]
    fits = [point.computed_tokens_per_second <= headroom * demand.rate * point.workers for point in points]
    tokens = next((point.workers for point, fit in zip(points, fits, strict=True) if fit), most)
    cache = _for_objective(demand, points)
    queue = demand.workers + 1 if demand.backlog_seconds > QUEUE_SECONDS or demand.queued_requests else 0
    number = max(tokens, cache, min(queue, most))
    return Desired(number, _reason(number, tokens=tokens, cache=cache))


def _for_objective(demand: PoolDemand, points: list[CurvePoint]) -> int:
    """The fewest that reach the objective; none where no number does."""
    if demand.objective is None:
        return 0
    return next((point.workers for point in points if point.hit_ratio >= demand.objective), 0)


def _reason(number: int, *, tokens: int, cache: int) -> ScalingReason:
    if number > max(tokens, cache):
        return ScalingReason.QUEUE
    if cache > tokens:
        return ScalingReason.CACHE
    return ScalingReason.TOKENS if number > 1 else ScalingReason.FLOOR


class DesiredWorkers:
    """Of one pool, over time."""

    def __init__(self) -> None:
        self._peaks: deque[tuple[float, Desired]] = deque()
        """Falling numbers wanted within HOLD_SECONDS, as in a maximum over a sliding window."""

    def at(self, now: float, demand: PoolDemand, curve: Callable[[int], CurvePoint]) -> Desired:
        """What is wanted at ``now``, which never goes back; rises at once, and falls after HOLD_SECONDS of less."""
        fresh = wanted(demand, curve)
        calm = wanted(demand, curve, headroom=HEADROOM * CALM)
        if fresh.workers < demand.workers:
            fresh = min(calm, Desired(demand.workers, fresh.reason), key=lambda one: one.workers)
        if not self._peaks:
            self._peaks.append((now, Desired(demand.workers, fresh.reason)))
        while self._peaks and self._peaks[-1][1].workers <= fresh.workers:
            self._peaks.pop()
        self._peaks.append((now, fresh))
        while self._peaks[0][0] < now - HOLD_SECONDS:
            self._peaks.popleft()
        return self._peaks[0][1]
