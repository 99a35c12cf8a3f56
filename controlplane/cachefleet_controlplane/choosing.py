"""From a prompt to a decision, over the live picture."""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.block_index import BlockIndex
from cachefleet_controlplane.candidates import eligible
from cachefleet_controlplane.decisions import CandidateView, Decision, Prompt, RoutingPolicy
from cachefleet_controlplane.roster import Roster
from cachefleet_controlplane.routing import decide

NO_ONE: Final[frozenset[str]] = frozenset()


class Chooser:
    """Looks at every worker anew for each decision."""

    def __init__(self, index: BlockIndex, roster: Roster) -> None:
        self._index = index
        self._roster = roster

    def choose(
        self, model: str, prompt: Prompt, *, policy: RoutingPolicy, now: float, exclude: frozenset[str] = NO_ONE
    ) -> Decision:
        """Where a prompt is best served, of the workers that are not excluded by full name or id."""
        return decide(prompt, self._candidates(model, prompt, exclude, now), policy, now)

    def _candidates(self, model: str, prompt: Prompt, exclude: frozenset[str], now: float) -> list[CandidateView]:
        workers = eligible(self._roster.fleet(model), exclude, now)
        ids = [worker.id for worker in workers]
        depths = self._index.match(prompt.keys, ids) if prompt.keys else [0] * len(ids)
        return [worker.candidate(prompt.keys, depth, now) for worker, depth in zip(workers, depths, strict=True)]
