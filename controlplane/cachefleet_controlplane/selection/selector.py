"""Selects a worker for a prompt by its block keys."""

from __future__ import annotations

from msgspec.structs import replace

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.routing.decision import Decision, Prompt
from cachefleet_controlplane.selection.choice import decide
from cachefleet_controlplane.selection.eligibility import Duty, Selection
from cachefleet_controlplane.selection.worker_table import WorkerTable
from cachefleet_controlplane.selection.worker_tables import WorkerTables
from cachefleet_controlplane.workers.registry import Registry


class Selector:
    """Keeps a table of workers for each fleet and duty."""

    def __init__(self, index: BlockIndex, registry: Registry) -> None:
        self._registry = registry
        self._native = index.native
        self._tables = WorkerTables(registry)

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
        refuted = self._registry.refuted_blocks.bounds(prompt.keys) if prompt.keys else {}
        table = self._tables.of(selection.model, selection.duty)
        return decide(self._native, table, prompt, prompt.keys, selection, refuted=[*refuted.items()])

    def renderers(self, model: str, now: float) -> WorkerTable:
        """Workers that may render for a model: those that may answer, where there are any."""
        table = self._tables.of(model, Duty.ANSWER)
        return table if table.native.preferred(now) else self._tables.of(model, Duty.RENDER)
