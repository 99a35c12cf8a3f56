"""What a worker is to be selected for, and which may be: of pools with the right role, ready, and preferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.pool.worker_spec import Role


class Duty(StrEnum):
    """The task that a worker is selected for."""

    ANSWER = "answer"
    """To answer a client."""
    PREFILL = "prefill"
    """To compute a prompt for a worker that will answer."""
    RENDER = "render"
    """To render a prompt and compute nothing."""


_ROLES: Final[Mapping[Duty, frozenset[Role]]] = MappingProxyType(
    {
        Duty.ANSWER: frozenset({Role.BOTH, Role.DECODE}),
        Duty.PREFILL: frozenset({Role.PREFILL}),
        Duty.RENDER: frozenset(Role),
    }
)

_Rule = Callable[[Worker, float], bool]

# Dropped from the last to the first until some worker satisfies the others.
_PREFERENCES: Final[tuple[_Rule, ...]] = (
    lambda worker, now: not worker.refuses_key(now),
    lambda worker, _now: not worker.differences,
    lambda worker, _now: not worker.leaving,
    lambda worker, now: worker.backoff_until <= now,
)


def on_duty(pools: Sequence[Pool], duty: Duty) -> list[Pool]:
    """The pools whose role allows this duty."""
    return [pool for pool in pools if pool.declared.spec.role in _ROLES[duty]]


def preference(worker: Worker, now: float, adapter: str = "") -> tuple[object, ...]:
    """All properties of a worker that ``eligible`` looks at, and its rule of hits."""
    lacks = bool(adapter) and worker.adapters.lacks(adapter)
    return worker.rule, worker.ready, worker.suspended(now), lacks, *(rule(worker, now) for rule in _PREFERENCES)


def eligible(pools: Sequence[Pool], exclude: frozenset[str], now: float, adapter: str = "") -> list[Worker]:
    """Workers that are ready, whose engines serve, no rank of which reports that it lacks ``adapter``, and that are not
    excluded by full name or id; only preferred ones (see _PREFERENCES) where there are any.
    """
    ready = [one for pool in pools for one in pool.workers.values() if one.serves(now)]
    if adapter:
        exclude |= {worker.full_name for worker in ready if worker.adapters.lacks(adapter)}
    if exclude:
        ready = [worker for worker in ready if worker.full_name not in exclude and worker.id not in exclude]
    for kept in range(len(_PREFERENCES), 0, -1):
        preferred = ready
        for rule in _PREFERENCES[:kept]:
            preferred = [worker for worker in preferred if rule(worker, now)]
        if preferred:
            return preferred
    return ready


def percents(pools: Sequence[Pool]) -> dict[str, int]:
    """Percent of a worker's blocks to keep free, by pool key."""
    return {pool.key: pool.declared.spec.admission.min_free_block_percent for pool in pools}


NO_ONE: Final[frozenset[str]] = frozenset()


class Selection(Struct, frozen=True, kw_only=True):
    """What is to be selected: a worker of a model for a duty, at a monotonic time.

    ``exclude`` has full names or ids of workers. ``every``: the decision is to have the scores of all candidates.
    """

    model: str
    policy: RoutingPolicy
    now: float
    exclude: frozenset[str] = NO_ONE
    duty: Duty = Duty.ANSWER
    every: bool = False
