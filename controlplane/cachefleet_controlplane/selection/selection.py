"""Selects a worker for a prompt: the eligible workers of pools with the right role, then ``scoring.decide``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.routing.decision import CandidateView, Decision, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.prompt_blocks import usable_blocks
from cachefleet_controlplane.routing.reservations import KEY_BYTES
from cachefleet_controlplane.routing.scoring import decide
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.pool.worker_spec import Role


class Duty(StrEnum):
    """The task that a worker is selected for."""

    ANSWER = "answer"
    """To answer a client."""
    PREFILL = "prefill"
    """To compute a prompt for a worker that will answer."""


_ROLES: Final[Mapping[Duty, frozenset[Role]]] = MappingProxyType(
    {Duty.ANSWER: frozenset({Role.BOTH, Role.DECODE}), Duty.PREFILL: frozenset({Role.PREFILL})}
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


def preference(worker: Worker, now: float) -> tuple[object, ...]:
    """All properties of a worker that ``eligible`` looks at, and its rule of hits."""
    return worker.rule, worker.ready, worker.suspended(now), *(rule(worker, now) for rule in _PREFERENCES)


def eligible(pools: Sequence[Pool], exclude: frozenset[str], now: float) -> list[Worker]:
    """Workers that are ready, whose engines serve, and that are not excluded by full name or id; only preferred ones
    (see _PREFERENCES) where there are any.
    """
    ready = [one for pool in pools for one in pool.workers.values() if one.serves(now)]
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


class Selector:
    """Scores every worker for each decision."""

    def __init__(self, index: BlockIndex, registry: Registry) -> None:
        self._index = index
        self._registry = registry

    def choose(
        self,
        model: str,
        prompt: Prompt,
        *,
        policy: RoutingPolicy,
        now: float,
        exclude: frozenset[str] = NO_ONE,
        duty: Duty = Duty.ANSWER,
    ) -> Decision:
        """Decide among the workers of this duty that are not excluded by full name or id; ``now`` is monotonic.

        Where the best has to be waited for, and enough was waited for the same prefix, that counts for other workers.
        """
        decision = self._decide(model, prompt, policy=policy, now=now, exclude=exclude, duty=duty)
        paid = self._registry.paid(decision, prompt, now) if decision.excess_seconds else 0.0
        if not paid:
            return decision
        known = replace(prompt, paid_seconds=paid, paid_tokens=decision.prefix_tokens)
        return self._decide(model, known, policy=policy, now=now, exclude=exclude, duty=duty)

    def _decide(
        self, model: str, prompt: Prompt, *, policy: RoutingPolicy, now: float, exclude: frozenset[str], duty: Duty
    ) -> Decision:
        pools = on_duty(self._registry.fleet(model), duty)
        return decide(prompt, self._candidates(pools, prompt, exclude, now), policy, now)

    def _candidates(
        self, pools: Sequence[Pool], prompt: Prompt, exclude: frozenset[str], now: float
    ) -> list[CandidateView]:
        percent = percents(pools)
        workers = eligible(pools, exclude, now)
        depths = self._matched(workers, prompt) if prompt.keys else [0] * len(workers)
        return [
            worker.candidate(prompt, depth, now, percent=percent[worker.pool], loadable=below)
            for worker, depth, below in zip(workers, depths, self._loadable(workers, prompt, depths), strict=True)
        ]

    def _loadable(self, workers: Sequence[Worker], prompt: Prompt, depths: Sequence[int]) -> list[int]:
        """Blocks below the device that follow the matched ones; of a worker that refuted any of its blocks, none."""
        keys = prompt.keys[: KEY_BYTES * usable_blocks(len(prompt.keys) // KEY_BYTES, prompt)]
        below = self._index.loadable(keys, [worker.id for worker in workers], depths, [one.rule for one in workers])
        if not any(below):
            return below
        refuted = self._registry.refuted_blocks.bounds(prompt.keys)
        return [0 if worker.id in refuted else blocks for worker, blocks in zip(workers, below, strict=True)]

    def _matched(self, workers: Sequence[Worker], prompt: Prompt) -> list[int]:
        """Blocks of the prompt that each worker would serve, less what it has just refuted."""
        match = partial(self._index.match, prompt.keys)
        most = usable_blocks(len(prompt.keys) // KEY_BYTES, prompt)
        depths = match([worker.id for worker in workers], rules=[worker.rule for worker in workers], usable=most)
        for worker, bound in self._registry.refuted_blocks.bounds(prompt.keys).items():
            for at, asked in enumerate(workers):
                if asked.id == worker and bound < depths[at]:
                    rule = asked.rule
                    depths[at] = bound if rule.plain else match([worker], rules=[rule], usable=bound)[0]
        return depths
