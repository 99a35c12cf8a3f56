"""Selection in plain Python: each decision looks at every worker anew."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.routing.decision import Decision, Prompt, Reason, RoutingPolicy
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES, usable_blocks
from cachefleet_controlplane.routing.worth import UNLEARNT
from cachefleet_controlplane.selection.eligibility import NO_ONE, Duty, on_duty
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.sent_texts import SentTexts
from cachefleet_controlplane.workers.worker import Worker
from tests.reference.candidate import Candidate
from tests.reference.eligibility import eligible, percents
from tests.reference.loads import ModelledFleet
from tests.reference.scoring import decide


class ReferenceSelector:
    """By the prompt's blocks."""

    def __init__(self, fleet: ModelledFleet) -> None:
        self._fleet = fleet
        self._index: BlockIndex = fleet.index
        self._registry = fleet._registry

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
        """Decide among the workers of this duty that are not excluded by full name or id; ``now`` is monotonic.

        Where the best has to be waited for, and enough was waited for the same prefix, that counts for other workers.
        """
        decision = self._decide(model, prompt, policy=policy, now=now, exclude=exclude, duty=duty)
        paid = self._registry.paid(decision, prompt, now) if decision.excess_seconds else 0.0
        if not paid:
            return decision
        known = replace(prompt, paid_seconds=paid, paid_tokens=decision.prefix_tokens)
        return self._decide(model, known, policy=policy, now=now, exclude=exclude, duty=duty)

    def _decide(
        self, model: str, prompt: Prompt, *, policy: RoutingPolicy, now: float, exclude: frozenset[str], duty: Duty
    ) -> Decision:
        pools = on_duty(self._registry.fleet(model), duty)
        candidates = self._candidates(pools, prompt, exclude, now)
        preferred = self._candidates(pools, prompt, NO_ONE, now)  # measurements of excluded workers count, too
        measured = preferred if {one.id for one in candidates} <= {one.id for one in preferred} else ()
        return decide(prompt, candidates, policy, now, measured)

    def _candidates(
        self, pools: Sequence[Pool], prompt: Prompt, exclude: frozenset[str], now: float
    ) -> list[Candidate]:
        percent = percents(pools)
        workers = eligible(pools, exclude, now)
        depths = self._matched(workers, prompt) if prompt.keys else [0] * len(workers)
        return [
            Candidate.of(
                worker,
                self._fleet.candidate(worker, prompt.adapter, now, percent=percent[worker.pool], worth=worker.worth),
                now,
                matched=depth,
                loadable=below,
                sent=self._sent(worker, prompt, now),
                coming=self._sent(worker, prompt, now, coming=True),
            )
            for worker, depth, below in zip(workers, depths, self._loadable(workers, prompt, depths), strict=True)
        ]

    def _sent(self, worker: Worker, prompt: Prompt, now: float, *, coming: bool = False) -> int:
        """Blocks of a prompt that were just sent to a worker, or will be there in time."""
        if not prompt.keys:
            return 0
        return self._fleet.loads(worker).match(prompt.keys, now, whole=bool(worker.rule.windows), coming=coming)

    def _loadable(self, workers: Sequence[Worker], prompt: Prompt, depths: Sequence[int]) -> list[int]:
        """Blocks below the device that follow the matched ones; of a worker that refuted any of its blocks, none."""
        keys = prompt.keys[: KEY_BYTES * usable_blocks(len(prompt.keys) // KEY_BYTES, prompt)]
        below = self._index.loadable(keys, [worker.id for worker in workers], depths, [one.rule for one in workers])
        if not any(below):
            return below
        refuted = self._registry.refuted_blocks.bounds(prompt.keys)
        return [0 if worker.id in refuted else blocks for worker, blocks in zip(workers, below, strict=True)]

    def _matched(self, workers: Sequence[Worker], prompt: Prompt) -> list[int]:
        """Blocks of the prompt that each worker would serve, less what it has just refuted."""
        match = partial(self._index.match, prompt.keys)
        most = usable_blocks(len(prompt.keys) // KEY_BYTES, prompt)
        depths = match([worker.id for worker in workers], rules=[worker.rule for worker in workers], usable=most)
        for worker, bound in self._registry.refuted_blocks.bounds(prompt.keys).items():
            for at, asked in enumerate(workers):
                if asked.id == worker and bound < depths[at]:
                    rule = asked.rule
                    depths[at] = bound if rule.plain else match([worker], rules=[rule], usable=bound)[0]
        return depths


class ReferenceTextSelector(ReferenceSelector):
    """By the prompt's text."""

    def __init__(self, texts: SentTexts, fleet: ModelledFleet) -> None:
        super().__init__(fleet)
        self._texts = texts

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
        if decision.reason is Reason.TOO_LARGE:
            unknown = Prompt(adapter=prompt.adapter)
            return super().choose(model, unknown, policy=policy, now=now, exclude=exclude, duty=duty)
        return decision

    def _candidates(
        self, pools: Sequence[Pool], prompt: Prompt, exclude: frozenset[str], now: float
    ) -> list[Candidate]:
        percent = percents(pools)
        workers = eligible(pools, exclude, now)
        return [
            Candidate.of(
                worker,
                self._fleet.candidate(worker, prompt.adapter, now, percent=percent[worker.pool], worth=UNLEARNT),
                now,
                matched=blocks,
                sent=blocks,
            )
            for worker in workers
            for blocks in [self._blocks(worker, prompt)]
        ]

    def _blocks(self, worker: Worker, prompt: Prompt) -> int:
        """Whole blocks of the text's chunks that were sent to a worker, as long as its cache has them."""
        if worker.hello is None and worker.row.failures:
            self._texts.forget(worker.id)
        else:
            self._texts.follow(worker.id, worker.hello.epoch if worker.hello else "")
        [chunks] = self._texts.match(prompt.keys, [worker.id]) if prompt.keys else [0]
        return int(chunks * prompt.chunks.tokens_each / prompt.block_size) if prompt.block_size else 0
