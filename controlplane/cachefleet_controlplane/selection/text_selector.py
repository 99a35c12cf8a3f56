"""Selects a worker by a prompt's text where its block keys are unknown: compares it with texts sent to each worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from cachefleet_controlplane.index.block_index import BlockIndex, IndexDefectError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import Decision, Prompt, Reason
from cachefleet_controlplane.selection.choice import decide
from cachefleet_controlplane.selection.eligibility import Selection
from cachefleet_controlplane.selection.selector import Selector
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.sent_texts import SentTexts
from cachefleet_controlplane.workers.worker import Worker

logger = logging.getLogger(__name__)

UNKNOWN_ROOM: Final = 16_384
"""Chunks assumed to fit into a worker of unknown size: 8 MiB of text."""


class TextSelector(Selector):
    """A selector over an index of text chunks of its own; matched chunks count as blocks just sent there."""

    def __init__(self, index: BlockIndex, registry: Registry) -> None:
        super().__init__(index, registry)
        self._texts = SentTexts(index)
        self._followed = -1
        """Version of the registry as of which texts of older epochs are dropped."""
        self._failing: dict[WorkerId, Worker] = {}

    def choose(self, prompt: Prompt, selection: Selection) -> Decision:
        """As ``Selector.choose``, by the prompt's chunks; never TOO_LARGE, as sizes are estimates."""
        decision = self._decide(prompt, selection)
        if decision.reason is Reason.TOO_LARGE:  # an estimate refuses no request
            return self._decide(Prompt(adapter=prompt.adapter), selection)
        return decision

    def likely(self, prompt: Prompt, selection: Selection) -> str:
        """The URL of the worker that a decision by the prompt's chunks would choose; "" for none."""
        try:
            return self.choose(prompt, selection).url
        except IndexDefectError:  # the decision itself will say so
            return ""

    def sent(self, worker: Worker, prompt: Prompt) -> None:
        """A prompt was sent to a worker."""
        chunks = prompt.chunks
        if not chunks.keys:
            return
        try:
            self._texts.sent(worker.id, _epoch(worker), chunks.keys, room=_room(worker, prompt))
        except IndexDefectError:
            logger.exception("the index of texts failed and begins anew", extra={"worker": worker.id})

    def keep(self, workers: Sequence[WorkerId]) -> None:
        """Drop the texts of all other workers."""
        self._texts.keep(workers)
        self._failing = {known: self._failing[known] for known in workers if known in self._failing}

    def failed(self, worker: Worker) -> None:
        """A request to a worker failed: without an agent to tell it, that counts as a restart."""
        if worker.hello is None:
            self._failing[worker.id] = worker

    def _decide(self, prompt: Prompt, selection: Selection) -> Decision:
        table = self._tables.of(selection.model, selection.duty)
        self._follow()
        chunks = prompt.chunks
        return decide(self._native, table, prompt, chunks.keys, selection, tokens_each=chunks.tokens_each)

    def _follow(self) -> None:
        """Drop the texts of workers' older epochs, and those of failing workers until they answer."""
        if self._followed != self._registry.version:  # raised by whatever begins another epoch
            self._followed = self._registry.version
            for worker in self._registry.workers():
                self._texts.follow(worker.id, _epoch(worker))
        for worker in [*self._failing.values()]:
            listed = self._registry.worker(worker.id) is worker  # else another one has its id
            if listed and worker.hello is None and worker.row.failures:
                self._texts.forget(worker.id)
            else:
                del self._failing[worker.id]


def _room(worker: Worker, prompt: Prompt) -> int:
    """Chunks of such a prompt that fit into a worker's cache."""
    blocks = worker.load.state.blocks_total if worker.load else 0
    blocks = blocks or (worker.hello.blocks_total if worker.hello else 0)
    if not blocks or not prompt.block_size or prompt.chunks.tokens_each <= 0:
        return UNKNOWN_ROOM
    return int(blocks * prompt.block_size / prompt.chunks.tokens_each)


def _epoch(worker: Worker) -> str:
    return worker.hello.epoch if worker.hello else ""
