"""Decisions by prompt text in native code, with the results of ``text_selection``.

What was sent to each worker is looked up in the index of texts, and counts as blocks just sent there.

Importing this module needs ``cachefleet_native``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import cachefleet_native

from cachefleet_controlplane.index.block_index import BlockIndex, IndexDefectError
from cachefleet_controlplane.routing.decision import Decision, Prompt, RoutingPolicy
from cachefleet_controlplane.selection.candidate_table import CandidateTable
from cachefleet_controlplane.selection.candidate_tables import CandidateTables
from cachefleet_controlplane.selection.native_choice import chosen
from cachefleet_controlplane.selection.selection import Duty
from cachefleet_controlplane.selection.text_selection import TextSelector, blocks_of
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worker import Worker

_KNOWN: Final = bytes(8)
"""Keys that no worker holds: that a prompt has any says that it is known."""


class TextTable(CandidateTable):
    """A table for decisions by text: what is guessed is not weighed more finely."""

    def __init__(self, pools: Sequence[Pool], now: float, adapter: str = "") -> None:
        super().__init__(pools, now, adapter, weighed=False)
        self.senders = cachefleet_native.Candidates([worker.id for worker in self.candidates])
        """The same candidates for the index of texts: each remembers where in one index it found them."""
        self.followed = -1
        """The table's ``changes`` when texts of older epochs were dropped last."""
        self.nothing: Final = bytes(4 * len(self.candidates))
        """What native code says where nobody was sent any."""
        self.failing: Sequence[Worker] = ()
        """Candidates of which nothing is kept until they answer."""


class NativeTextSelector(TextSelector):
    """Keeps a table of candidates for each fleet; rare cases are decided in Python, as by ``NativeSelector``."""

    def __init__(self, index: BlockIndex, registry: Registry) -> None:
        super().__init__(index, registry)
        self._native = index.native
        self._empty = cachefleet_native.Index()
        self._tables = CandidateTables(registry, TextTable)

    def _decide(
        self, model: str, prompt: Prompt, *, policy: RoutingPolicy, now: float, exclude: frozenset[str], duty: Duty
    ) -> Decision:
        usual = policy is RoutingPolicy.CACHE_AWARE and not exclude and bool(prompt.keys)
        table = self._tables.of(model, prompt.adapter, duty, now) if usual else None
        decision = None
        if table is not None and table.candidates:
            sent = self._sent(table, prompt)
            blocks = [0] * len(table.candidates)
            for place, each in sent:
                blocks[place] = each
            decision = chosen(self._empty, table, prompt, _KNOWN, sent=sent, matched=blocks, now=now)
        return decision or super()._decide(model, prompt, policy=policy, now=now, exclude=exclude, duty=duty)

    def _sent(self, table: TextTable, prompt: Prompt) -> list[tuple[int, int]]:
        """Candidates that were sent some of the prompt's whole blocks, and how many."""
        unsure = table.failing
        if table.changes != table.followed:  # only what raises a worker's standing begins another epoch
            table.followed, unsure = table.changes, table.candidates
            table.failing = [worker for worker in table.candidates if worker.hello is None and worker.failures]
        for worker in unsure:
            self._follow(worker)
        try:
            packed = self._native.match_packed(prompt.keys, table.senders)
        except cachefleet_native.InternalError as error:
            raise IndexDefectError(str(error)) from error
        if packed == table.nothing:
            return []
        found = [(place, blocks_of(chunks, prompt)) for place, chunks in enumerate(table.unpack(packed)) if chunks]
        return [(place, blocks) for place, blocks in found if blocks]
