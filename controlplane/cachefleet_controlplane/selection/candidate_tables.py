"""The tables of candidates of all fleets, each made when it is first asked for."""

from __future__ import annotations

from cachefleet_controlplane.selection.candidate_table import CandidateTable
from cachefleet_controlplane.selection.eligibility import Duty, on_duty
from cachefleet_controlplane.workers.registry import Registry


class CandidateTables:
    """Tables by model, adapter and duty; ``weighed`` as ``CandidateTable`` has it."""

    def __init__(self, registry: Registry, *, weighed: bool = True) -> None:
        self._registry, self._weighed = registry, weighed
        self.known: dict[tuple[str, str, Duty], CandidateTable] = {}
        self._version = registry.version

    def of(self, model: str, adapter: str, duty: Duty, *, exclude: frozenset[str], now: float) -> CandidateTable:
        """The up-to-date table; it is kept where it excludes no more than workers that lack the adapter."""
        if self._version != self._registry.version:
            self.known.clear()
            self._version = self._registry.version
        table = self.known.get((model, adapter, duty))
        if table is not None and table.exclude == exclude and table.follow(now):
            return table
        pools = on_duty(self._registry.fleet(model), duty)
        table = CandidateTable(pools, now, adapter, exclude=exclude, weighed=self._weighed)
        if table.candidates and exclude == self._registry.lacking(model):
            self.known[model, adapter, duty] = table
        return table
