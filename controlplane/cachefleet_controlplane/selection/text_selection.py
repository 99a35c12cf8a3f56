"""Decisions where a prompt's blocks are not known: its text is held against what was sent to whom."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cachefleet_controlplane.index.protocol import BlockIndex, IndexDefectError, WorkerId
from cachefleet_controlplane.routing.decision import CandidateView, Decision, Prompt, Reason, RoutingPolicy
from cachefleet_controlplane.selection.selection import NO_ONE, Duty, Selector, eligible, percents
from cachefleet_controlplane.workers.registry import Pool, Registry
from cachefleet_controlplane.workers.sent_texts import SentTexts
from cachefleet_controlplane.workers.worker import Worker

logger = logging.getLogger(__name__)

UNKNOWN_ROOM: Final = 16_384
"""Chunks that a worker is taken to hold whose size nobody has told: 8 MiB of text."""


class TextSelector(Selector):
    """Over an index of its own, of chunks; what ``decide`` is shown of them are blocks."""

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
        known = replace(prompt, keys=prompt.chunks.keys)
        decision = super().choose(model, known, policy=policy, now=now, exclude=exclude, duty=duty)
        if decision.reason is Reason.TOO_LARGE:  # no estimate refuses anybody
            return super().choose(model, Prompt(), policy=policy, now=now, exclude=exclude, duty=duty)
        return decision

    def sent(self, worker: Worker, prompt: Prompt) -> None:
        """A prompt has gone to a worker."""
        chunks = prompt.chunks
        if not chunks.keys:
            return
        try:
            self._texts.sent(worker.id, _epoch(worker), chunks.keys, room=_room(worker, prompt))
        except IndexDefectError:
            logger.exception("the index of texts failed and begins anew", extra={"worker": worker.id})

    def keep(self, workers: Sequence[WorkerId]) -> None:
        """All others are gone."""
        self._texts.keep(workers)

    def _follow(self, worker: Worker) -> None:
        """Without an agent nobody tells that it was started anew; it is, as a rule, where it could not be reached."""
        if worker.hello is None and worker.failures:
            self._texts.forget(worker.id)
        else:
            self._texts.follow(worker.id, _epoch(worker))

    def _candidates(
        self, pools: Sequence[Pool], prompt: Prompt, exclude: frozenset[str], now: float
    ) -> list[CandidateView]:
        percent = percents(pools)
        workers = eligible(pools, exclude, now)
        for worker in workers:
            self._follow(worker)
        ids = [worker.id for worker in workers]
        depths = self._texts.match(prompt.keys, ids) if prompt.keys else [0] * len(ids)
        return [
            _view(worker, _blocks(depth, prompt), now, percent=percent[worker.pool])
            for worker, depth in zip(workers, depths, strict=True)
        ]


def _view(worker: Worker, blocks: int, now: float, *, percent: int) -> CandidateView:
    """We saw ourselves what was sent: it is expected there even while reports are stale."""
    return worker.candidate(b"", blocks, now, percent=percent, sent=blocks)


def _blocks(chunks: int, prompt: Prompt) -> int:
    """Whole blocks in so many chunks of a prompt."""
    return int(chunks * prompt.chunks.tokens_each / prompt.block_size) if prompt.block_size else 0


def _room(worker: Worker, prompt: Prompt) -> int:
    """Chunks of such a prompt that a worker's cache has room for."""
    blocks = worker.load.state.blocks_total if worker.load else 0
    blocks = blocks or (worker.hello.blocks_total if worker.hello else 0)
    if not blocks or not prompt.block_size or prompt.chunks.tokens_each <= 0:
        return UNKNOWN_ROOM
    return int(blocks * prompt.block_size / prompt.chunks.tokens_each)


def _epoch(worker: Worker) -> str:
    return worker.hello.epoch if worker.hello else ""
