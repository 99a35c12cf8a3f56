"""Selects a worker for a prompt by its block keys."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, Reason, unplaced
from cachefleet_controlplane.selection.candidate_table import CandidateTable
from cachefleet_controlplane.selection.candidate_tables import CandidateTables
from cachefleet_controlplane.selection.choice import NOTHING_CACHED, CachedBlocks, decide
from cachefleet_controlplane.selection.eligibility import Duty, Selection
from cachefleet_controlplane.workers.registry import Registry


class Selector:
    """Keeps a table of candidates for each fleet, adapter and duty."""

    def __init__(self, index: BlockIndex, registry: Registry, *, weighed: bool = True) -> None:
        """``weighed``: costs for others, as pools have learnt them, count."""
        self._registry = registry
        self._native = index.native
        self._tables = CandidateTables(registry, weighed=weighed)

    def choose(self, prompt: Prompt, selection: Selection) -> Decision:
        """Decide among the workers of this duty that are not excluded. IndexDefectError.

        Where the best has to be waited for, and enough was waited for the same prefix, that counts for other workers.
        """
        decision = self._decide(prompt, selection)
        paid = self._registry.paid(decision, prompt, selection.now) if decision.excess_seconds else 0.0
        if not paid:
            return decision
        return self._decide(replace(prompt, paid_seconds=paid, paid_tokens=decision.prefix_tokens), selection)

    def _decide(self, prompt: Prompt, selection: Selection) -> Decision:
        policy, now = selection.policy, selection.now
        table, excluded = self._table(prompt.adapter, selection)
        if not table.candidates:
            return unplaced(prompt, Reason.NO_READY_WORKER, policy=policy, knowledge=Knowledge.LOAD, at=now)
        cached = self._cached(table, prompt, now) if prompt.keys else NOTHING_CACHED
        return decide(self._native, table, prompt, cached, selection, excluded=excluded)

    def _table(self, adapter: str, selection: Selection) -> tuple[CandidateTable, Sequence[int]]:
        """The candidates, and those of them that are excluded: never all, as others than preferred ones may be left."""
        model, duty, now = selection.model, selection.duty, selection.now
        table = self._tables.of(model, adapter, duty, now=now)
        excluded = table.named(selection.exclude) if selection.exclude else ()
        if excluded and len(excluded) == len(table.candidates):
            return self._tables.without(selection.exclude, model, adapter, duty, now=now), ()
        return table, excluded

    def renderers(self, model: str, now: float) -> CandidateTable:
        """Workers that may render for a model: those that may answer, where there are any."""
        adapter = self._registry.adapter(model)
        table = self._tables.of(model, adapter, Duty.ANSWER, now=now)
        return table if table.candidates else self._tables.of(model, adapter, Duty.RENDER, now=now)

    def _cached(self, table: CandidateTable, prompt: Prompt, now: float) -> CachedBlocks:
        refuted = self._registry.refuted_blocks.bounds(prompt.keys)
        return CachedBlocks(sent=table.sent(prompt.keys, now), refuted=table.places(refuted) if refuted else ())
