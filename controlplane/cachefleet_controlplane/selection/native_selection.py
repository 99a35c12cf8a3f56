"""Decisions in native code: match and cost of all candidates in one call, with the results of ``scoring.decide``.

Importing this module needs ``cachefleet_native``.
"""

from __future__ import annotations

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.selection.candidate_table import CandidateTable
from cachefleet_controlplane.selection.candidate_tables import CandidateTables
from cachefleet_controlplane.selection.native_choice import chosen
from cachefleet_controlplane.selection.selection import Duty, Selector
from cachefleet_controlplane.workers.registry import Registry


class NativeSelector(Selector):
    """Keeps a table of candidates for each fleet; rare cases are decided in Python.

    These are: another policy, excluded workers, refuted blocks, loads that native code does not accept, and workers
    whose room native code may judge wrongly.
    """

    def __init__(self, index: BlockIndex, registry: Registry) -> None:
        super().__init__(index, registry)
        self._native = index.native
        self._tables = CandidateTables(registry, CandidateTable)

    def _decide(
        self, model: str, prompt: Prompt, *, policy: RoutingPolicy, now: float, exclude: frozenset[str], duty: Duty
    ) -> Decision:
        usual = policy is RoutingPolicy.CACHE_AWARE and not exclude and not self._distrusted(prompt)
        table = self._tables.of(model, prompt.adapter, duty, now) if usual else None
        decision = None
        if table is not None and table.candidates:
            sent = table.sent(prompt.keys, now) if prompt.keys else []
            decision = chosen(self._native, table, prompt, prompt.keys, sent=sent, now=now)
        return decision or super()._decide(model, prompt, policy=policy, now=now, exclude=exclude, duty=duty)

    def _distrusted(self, prompt: Prompt) -> bool:
        """Whether matches of the prompt may not be used as they are."""
        return _disowned(prompt) or bool(self._registry.refuted_blocks.bounds(prompt.keys))


def _disowned(prompt: Prompt) -> bool:
    """Whether the prompt has keys that must not be used."""
    return bool(prompt.keys) and prompt.knowledge is Knowledge.LOAD
