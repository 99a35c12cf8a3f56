"""The tables of candidates of all fleets, each made when it is first asked for."""

from __future__ import annotations

from cachefleet_controlplane.selection.candidate_table import CandidateTable
from cachefleet_controlplane.selection.eligibility import NO_ONE, Duty, on_duty
from cachefleet_controlplane.workers.registry import Registry


class CandidateTables:
    """Tables by model, adapter and duty; ``weighed`` as ``CandidateTable`` has it."""

    def __init__(self, registry: Registry, *, weighed: bool = True) -> None:
        self._registry, self._weighed = registry, weighed
        self.kept: dict[tuple[str, str, Duty], CandidateTable] = {}
        self._version = registry.version

    def of(self, model: str, adapter: str, duty: Duty, *, now: float) -> CandidateTable:
        """The up-to-date table; it is kept where it has candidates."""
        if self._version != self._registry.version:
            self.kept.clear()
            self._version = self._registry.version
        table = self.kept.get((model, adapter, duty))
        if table is not None and table.follow(now):
            return table
        table = self.without(NO_ONE, model, adapter, duty, now=now)
        if table.candidates:
            self.kept[model, adapter, duty] = table
        return table

    def without(self, exclude: frozenset[str], model: str, adapter: str, duty: Duty, *, now: float) -> CandidateTable:
        """A new table without these workers, which is not kept."""
        pools, needed = on_duty(self._registry.fleet(model), duty), self._registry.adapter(model)
        return CandidateTable(pools, now, adapter, needed=needed, exclude=exclude, weighed=self._weighed)
