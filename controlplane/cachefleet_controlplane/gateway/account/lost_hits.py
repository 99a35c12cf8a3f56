"""At a request's end: which tokens of its prompt were not served from cache, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from cachefleet_controlplane.capacity.pool_reuse import PoolReuses, ReusedPrompt
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.account.prompt_losses import PromptLosses
from cachefleet_controlplane.gateway.account.shortfall_records import (
    Shortfalls,
    claimed_tokens,
    prefilled,
)
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.request.rendered_prompt import Rung
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.history.cache_history import Answered
from cachefleet_controlplane.history.seen_blocks import Computed, SeenBlocks
from cachefleet_controlplane.index.block_index import IndexDefectError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from cachefleet_controlplane.routing.decision import Decision
from cachefleet_controlplane.routing.lost_tokens import Levels, LostCause, lost_tokens, of_shortfall
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES
from cachefleet_controlplane.store.decision_records import LostRecord, PromptLossRecord

logger = logging.getLogger(__name__)

_UNKEYED: Final = frozenset({Rung.NONE, Rung.TEXT})
"""Rungs that give no block keys."""


class LostHits:
    """Of ended requests; ``served`` is told of each prompt's packed keys and how many of its first blocks came from
    cache, ``reuses`` of the prompts whose blocks are known.
    """

    def __init__(
        self,
        fleet: Fleet,
        shortfalls: Shortfalls,
        served: Callable[[bytes, int], None] | None,
        prompts: PromptLosses | None = None,
        reuses: PoolReuses | None = None,
    ) -> None:
        self._fleet = fleet
        self._reuses = reuses
        self._shortfalls = shortfalls
        self._served = served
        self._seen = SeenBlocks()
        self._prompts = prompts

    def ended(self, trace: DecisionTrace) -> tuple[Answered | None, bool]:
        """What was lost of a prompt that an engine has processed, as far as its answer tells, also in the trace, and
        whether that is a measure of the pool's cache; None of others.
        """
        levels, decision = self._levels(trace), trace.answered
        if levels is None or decision is None or not decision.pool:
            return None, False
        lost = lost_tokens(levels)
        first_seen = () if self._prompts is None else self._prompts.ended(trace, decision, levels, lost)
        trace.lost = tuple([LostRecord(cause.value, tokens, _of(cause, first_seen)) for cause, tokens in lost.items()])
        if self._reuses is not None and levels.whole is None:
            self._note_reuse(self._reuses, trace, levels, elsewhere=lost.get(LostCause.HELD_ELSEWHERE, 0))
        answered = Answered(
            requests=1,
            prompt_tokens=levels.prompt_tokens,
            served_tokens=levels.prompt_tokens - sum(lost.values()),
            lost=lost,
            first_seen={PromptCause(one.cause): one.tokens for one in first_seen},
            ttft_sum=trace.ttft_seconds or 0.0,
            ttft_count=int(trace.ttft_seconds is not None),
        )
        return answered, _tells(trace, levels)

    def _note_reuse(self, reuses: PoolReuses, trace: DecisionTrace, levels: Levels, *, elsewhere: int) -> None:
        """Pass on a prompt of which one worker looked up all, of an engine that needs a prefix alone for a hit."""
        there = trace.prefill if prefilled(trace) and trace.prefill is not None else trace
        decision, usage = there.answered, there.usage
        if decision is None or usage is None or not self._fleet.losses.by_prefix(decision.id):
            return
        prompt = ReusedPrompt(
            keys=there.keys,
            block_size=there.block_size,
            prompt_tokens=levels.prompt_tokens,
            completion_tokens=usage.completion_tokens or 0,
            servable_blocks=levels.servable_tokens // there.block_size,
            served_tokens=levels.served_tokens,
            elsewhere_tokens=elsewhere,
            tenant=trace.tenant,
        )
        reuses.note(decision.pool, prompt, self._fleet.losses.now())

    def _levels(self, trace: DecisionTrace) -> Levels | None:
        usage, decision = trace.usage, trace.answered
        if decision is None or not trace.attempts:
            return None
        if usage is None:  # its client has gone, or it does not tell
            told = trace.cut_short.prompt_tokens if trace.cut_short else decision.prompt_tokens
            tokens = told if trace.status == 200 else 0
            return _untold(tokens) if tokens else None
        if not prefilled(trace):
            return self._of_prompt(trace, usage)
        # The Decode worker counts what was brought over among what it had cached; the Prefill worker looked it up.
        there = trace.prefill
        if there is None or there.usage is None:
            return _untold(usage.prompt_tokens)
        return self._of_prompt(there, there.usage)

    def _of_prompt(self, trace: DecisionTrace, usage: Usage) -> Levels:
        """Of a prompt that one worker looked up in its cache."""
        answered = trace.answered
        whole = _whole(usage, answered, trace, keyed=self._fleet.losses.keyed)
        prompt, cached = usage.prompt_tokens, usage.cached_tokens or 0
        if whole is not None or answered is None:
            return Levels(prompt_tokens=prompt, served_tokens=cached, whole=whole or LostCause.UNKNOWN)
        return self._of_blocks(trace, answered, prompt, cached)

    def _of_blocks(self, trace: DecisionTrace, decision: Decision, prompt: int, cached: int) -> Levels:
        """Where the prompt's blocks are known."""
        first, size, losses = trace.first, trace.block_size, self._fleet.losses
        servable = max(0, losses.keyed(decision.id, prompt, size) - losses.dropped(decision.id))
        loaded, short = decision.loaded_tokens, None
        claimed = claimed_tokens(decision, size) + loaded
        if cached < claimed:
            short = self._shortfalls.cause_of(trace, claimed, decision, loaded=loaded)
        blocks, gone = self._before(decision, trace.keys, cached // size, servable)
        return Levels(
            prompt_tokens=prompt,
            served_tokens=cached,
            servable_tokens=servable * size,
            claimed_tokens=claimed,
            shortfall=of_shortfall(short),
            first_tokens=claimed_tokens(first, size) if first is not None and first.id != decision.id else 0,
            elsewhere_tokens=max(decision.elsewhere_blocks * size, decision.elsewhere_tokens),
            seen_tokens=blocks * size,
            gone=gone,
        )

    def _before(self, decision: Decision, keys: bytes, served: int, servable: int) -> tuple[int, LostCause]:
        """How many of the first blocks were computed before the decision, and why they are gone; remembers all.

        Nothing is looked for where all that can be was served.
        """
        blocks, where = self._seen.longest(keys, before=decision.at) if served < servable else (0, None)
        gone = LostCause.EVICTED
        if where is not None and blocks > served:
            try:
                gone = self._fleet.losses.fate(
                    where.worker, keys[: KEY_BYTES * min(blocks, servable)], where.at, chosen=decision.id
                )
            except IndexDefectError:
                logger.exception("the index failed; why blocks are gone is not known", extra={"worker": where.worker})
                gone = LostCause.UNKNOWN
        self._seen.note(keys, Computed(decision.id, self._fleet.losses.now()), served=served)
        if self._served is not None:
            self._served(keys, served)
        return blocks, gone


def _of(cause: LostCause, first_seen: tuple[PromptLossRecord, ...]) -> tuple[PromptLossRecord, ...]:
    """The causes in the prompt of those tokens that have any."""
    return first_seen if cause is LostCause.FIRST_SEEN else ()


def _tells(trace: DecisionTrace, levels: Levels) -> bool:
    """Whether an answer says how much of its prompt came from cache: of several prompts, a prompt that the engine does
    not look for, or one that a gate has refused, it does not.
    """
    usage = trace.usage
    judged = levels.whole not in {LostCause.NOT_TOLD, LostCause.NOT_READ}
    return judged and trace.single and usage is not None and usage.completion_tokens != 0


def _untold(tokens: int) -> Levels:
    """Of a prompt of which no worker tells what it had cached."""
    return Levels(prompt_tokens=tokens, served_tokens=0, whole=LostCause.NOT_TOLD)


def _whole(
    usage: Usage, answered: Decision | None, trace: DecisionTrace, *, keyed: Callable[[WorkerId, int, int], int]
) -> LostCause | None:
    """The cause of everything, where the prompt's blocks do not tell; None where they do."""
    if usage.cached_tokens is None:
        return LostCause.NOT_TOLD
    if not trace.reads_cache:
        return LostCause.NOT_READ
    if answered is None:
        return LostCause.UNKNOWN
    tokens, size = answered.prompt_tokens, trace.block_size
    if not size or trace.rung in _UNKEYED or len(trace.keys) // KEY_BYTES < keyed(answered.id, tokens, size):
        return LostCause.NOT_RENDERED
    if usage.prompt_tokens != tokens:  # of several prompts the blocks of the first alone are known
        return LostCause.RENDERED_DIFFERENTLY if trace.single else LostCause.NOT_RENDERED
    return None
