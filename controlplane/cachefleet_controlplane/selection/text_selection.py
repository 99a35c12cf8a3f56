"""Decisions by prompt text where block keys are unknown: compares it with texts sent to each worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from heapq import nlargest, nsmallest
from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.index.block_index import BlockIndex, IndexDefectError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import CandidateView, Decision, Prompt, Reason, RoutingPolicy
from cachefleet_controlplane.routing.scoring import decide
from cachefleet_controlplane.routing.worth import UNLEARNT
from cachefleet_controlplane.selection.selection import NO_ONE, Duty, Selector, eligible, percents
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.sent_texts import SentTexts
from cachefleet_controlplane.workers.worker import Worker

logger = logging.getLogger(__name__)

UNKNOWN_ROOM: Final = 16_384
"""Chunks assumed to fit into a worker of unknown size: 8 MiB of text."""
SHORTLISTED: Final = 8
"""Workers that hold most of a text, and as many least busy ones, among which a guess is made."""


class TextSelector(Selector):
    """A selector over an index of text chunks of its own; matched chunks are converted to blocks for ``decide``."""

    def __init__(self, index: BlockIndex, registry: Registry) -> None:
        super().__init__(index, registry)
        self._texts = SentTexts(index)

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
        """As ``Selector.choose``, by the prompt's chunks; never TOO_LARGE, as sizes are estimates."""
        known = by_text(prompt)
        decision = super().choose(model, known, policy=policy, now=now, exclude=exclude, duty=duty)
        if decision.reason is Reason.TOO_LARGE:  # an estimate refuses no request
            return super().choose(
                model, Prompt(adapter=prompt.adapter), policy=policy, now=now, exclude=exclude, duty=duty
            )
        return decision

    def likely(
        self, pools: Sequence[Pool], workers: Sequence[Worker], prompt: Prompt, *, policy: RoutingPolicy, now: float
    ) -> str:
        """The URL of the one of ``workers`` whom a decision by the prompt's chunks would probably choose; "" for none.

        A guess that costs little, whatever the number of workers: most of them are not judged, and none that is alone.
        """
        if len(workers) == 1:
            return workers[0].endpoint.url if workers[0].endpoint else ""
        try:
            depths = self._depths(workers, prompt.chunks.keys)
        except IndexDefectError:  # the decision itself will say so
            return ""
        longest = nlargest(SHORTLISTED, zip(workers, depths, strict=True), key=lambda each: each[1])
        idlest = nsmallest(SHORTLISTED, zip(workers, depths, strict=True), key=lambda each: _busy(each[0]))
        percent = percents(pools)
        views = [
            _view(worker, prompt, blocks_of(depth, prompt), now, percent=percent[worker.pool])
            for worker, depth in {worker.id: (worker, depth) for worker, depth in longest + idlest}.values()
        ]
        return decide(by_text(prompt), views, policy, now).url

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

    def _follow(self, worker: Worker) -> None:
        """Drop texts of an older epoch; without an agent to tell it, a failed request counts as a restart."""
        if worker.hello is None and worker.failures:
            self._texts.forget(worker.id)
        else:
            self._texts.follow(worker.id, _epoch(worker))

    def _candidates(
        self, pools: Sequence[Pool], prompt: Prompt, exclude: frozenset[str], now: float
    ) -> list[CandidateView]:
        percent = percents(pools)
        workers = eligible(pools, exclude, now)
        return [
            _view(worker, prompt, blocks_of(depth, prompt), now, percent=percent[worker.pool])
            for worker, depth in zip(workers, self._depths(workers, prompt.keys), strict=True)
        ]

    def _depths(self, workers: Sequence[Worker], chunks: bytes) -> list[int]:
        """How many of a text's first chunks each worker holds."""
        for worker in workers:
            self._follow(worker)
        ids = [worker.id for worker in workers]
        return self._texts.match(chunks, ids) if chunks else [0] * len(ids)


def by_text(prompt: Prompt) -> Prompt:
    """The prompt with the keys of its chunks for those of its blocks."""
    return replace(prompt, keys=prompt.chunks.keys)


def _busy(worker: Worker) -> tuple[int, int]:
    return worker.requests, worker.last_used


def _view(worker: Worker, prompt: Prompt, blocks: int, now: float, *, percent: int) -> CandidateView:
    """This replica knows what it sent: it is expected there even while reports are stale."""
    view = worker.candidate(prompt, blocks, now, percent=percent, sent=blocks)
    return replace(view, worth=UNLEARNT)  # what is guessed is not weighed more finely


def blocks_of(chunks: int, prompt: Prompt) -> int:
    """Whole blocks in so many chunks of a prompt."""
    return int(chunks * prompt.chunks.tokens_each / prompt.block_size) if prompt.block_size else 0


def _room(worker: Worker, prompt: Prompt) -> int:
    """Chunks of such a prompt that fit into a worker's cache."""
    blocks = worker.load.state.blocks_total if worker.load else 0
    blocks = blocks or (worker.hello.blocks_total if worker.hello else 0)
    if not blocks or not prompt.block_size or prompt.chunks.tokens_each <= 0:
        return UNKNOWN_ROOM
    return int(blocks * prompt.block_size / prompt.chunks.tokens_each)


def _epoch(worker: Worker) -> str:
    return worker.hello.epoch if worker.hello else ""
