"""From a prompt to a decision, over the live picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefleet_controlplane.index.protocol import BlockIndex
from cachefleet_controlplane.routing.decision import CandidateView, Decision, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.scoring import decide
from cachefleet_controlplane.selection.candidates import Duty, eligible, on_duty, percents
from cachefleet_controlplane.workers.registry import Pool, Registry

NO_ONE: Final[frozenset[str]] = frozenset()


class Selector:
    """Looks at every worker anew for each decision."""

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
        """Where a prompt is best served, of the workers of this duty that are not excluded by full name or id."""
        pools = on_duty(self._registry.fleet(model), duty)
        return decide(prompt, self._candidates(pools, prompt, exclude, now), policy, now)

    def _candidates(
        self, pools: Sequence[Pool], prompt: Prompt, exclude: frozenset[str], now: float
    ) -> list[CandidateView]:
        percent = percents(pools)
        workers = eligible(pools, exclude, now)
        ids = [worker.id for worker in workers]
        depths = self._index.match(prompt.keys, ids) if prompt.keys else [0] * len(ids)
        believed = self._registry.refuted_blocks.bounds(prompt.keys)
        return [
            worker.candidate(prompt.keys, min(depth, believed.get(worker.id, depth)), now, percent=percent[worker.pool])
            for worker, depth in zip(workers, depths, strict=True)
        ]
