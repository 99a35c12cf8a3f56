"""Where a request is best served: a pure function of what is known about prompt and workers.

The cost of serving a prompt on a worker, in seconds, is

    (Q + I + U) / R  +  ITL * ceil((Q + I + U) / C)  +  w * E / R

with Q the worker's waiting uncomputed tokens, I the tokens this replica has sent that the worker's report does not
show yet, U the prompt's tokens that are not cached there, R its prefill rate in tokens a second, ITL its
inter-token latency, C the tokens it computes in one step, and E the cached tokens that would have to be evicted to
make room, weighted by ``w = EVICTION_WEIGHT``: what is evicted here is recomputed later.

Costs within TIE of the cheapest are a tie. Among tied workers the longer prefix wins, then the fewer requests, then
the least recently used one, so that cold prompts spread. Nothing here reads a clock or rolls dice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cachefleet_controlplane.decisions import (
    LEADING,
    NOBODY,
    STALE_AFTER_SECONDS,
    CandidateScore,
    CandidateView,
    Decision,
    Knowledge,
    LaterScores,
    Prompt,
    Reason,
    RoutingPolicy,
    Verdict,
    leading_places,
)
from cachefleet_controlplane.rates import Pace, Paces

__all__ = [
    "NOBODY",
    "STALE_AFTER_SECONDS",
    "CandidateScore",
    "CandidateView",
    "Decision",
    "Knowledge",
    "Prompt",
    "Reason",
    "RoutingPolicy",
    "Verdict",
    "decide",
    "needed_blocks",
    "score",
    "usable_tokens",
]

OUTPUT_TOKENS_COUNTED: Final = 256
"""Output beyond this does not count when asking whether a request fits."""
TIE: Final = 0.05
EVICTION_WEIGHT: Final = 1.0


def decide(prompt: Prompt, candidates: Sequence[CandidateView], policy: RoutingPolicy, now: float) -> Decision:
    """Choose among candidates. The answer is always one of them; REJECT only where there are none."""
    knowledge = _knowledge(prompt, candidates, policy)
    if not candidates:
        return Decision(
            verdict=Verdict.REJECT,
            reason=Reason.NO_READY_WORKER,
            policy=policy,
            knowledge=knowledge,
            prompt_tokens=prompt.tokens,
            uncached_tokens=prompt.tokens,
            at=now,
        )
    judged = _judge(prompt, candidates)
    chosen, reason = _choose(judged, policy, knowledge)
    return Decision(
        verdict=Verdict.ROUTE,
        reason=reason,
        policy=policy,
        knowledge=knowledge,
        worker=chosen.view.worker,
        id=chosen.view.id,
        pool=chosen.view.pool,
        url=chosen.view.url,
        rank=chosen.view.rank,
        prompt_tokens=prompt.tokens,
        predicted_tokens=chosen.score.predicted_tokens,
        uncached_tokens=chosen.score.uncached_tokens,
        leading=LaterScores(
            min(LEADING, len(judged)), partial(_leading, judged, chosen, policy=policy, knowledge=knowledge)
        ),
        scores=tuple(one.score for one in judged),
        at=now,
    )


def score(prompt: Prompt, view: CandidateView, pace: Pace) -> CandidateScore:
    """How a candidate of this pace is judged."""
    matched = 0 if view.stale else view.matched_blocks
    predicted = usable_tokens(matched, prompt)
    # What was just sent there we saw ourselves: it counts even while reports are stale.
    expected = max(predicted, usable_tokens(view.sent_blocks, prompt))
    rate, latency, batched = pace.tokens_per_second, pace.inter_token_seconds, pace.batched_tokens
    uncached = prompt.tokens - expected
    evicted = _evicted(prompt, view, expected)
    work = view.queued_tokens + view.inflight_tokens + uncached
    return CandidateScore(
        worker=view.worker,
        id=view.id,
        pool=view.pool,
        matched_blocks=view.matched_blocks,
        predicted_tokens=predicted,
        expected_tokens=expected,
        queued_tokens=view.queued_tokens,
        inflight_tokens=view.inflight_tokens,
        uncached_tokens=uncached,
        evicted_tokens=evicted,
        tokens_per_second=rate,
        inter_token_seconds=latency,
        batched_tokens=batched,
        requests=view.requests,
        seconds=work / rate + latency * math.ceil(work / batched) + EVICTION_WEIGHT * evicted / rate,
        report_age=view.report_age,
        fits=_fits(prompt, view),
    )


def usable_tokens(blocks: int, prompt: Prompt) -> int:
    """How many tokens of a prompt a prefix of ``blocks`` cached blocks saves: the engine recomputes the last one."""
    if prompt.tokens < 1 or prompt.block_size < 1:
        return 0
    return min(blocks, (prompt.tokens - 1) // prompt.block_size) * prompt.block_size


def needed_blocks(prompt: Prompt) -> int:
    """Blocks that the prompt and the start of its answer fill; 0 where the block size is not known."""
    if prompt.block_size < 1:
        return 0
    return -(-(prompt.tokens + min(prompt.max_tokens, OUTPUT_TOKENS_COUNTED)) // prompt.block_size)


@dataclass(frozen=True, slots=True)
class _Judged:
    view: CandidateView
    score: CandidateScore


def _knowledge(prompt: Prompt, candidates: Sequence[CandidateView], policy: RoutingPolicy) -> Knowledge:
    """What the choice rests on, which is less than what is known where the policy or stale reports forbid it."""
    blind = policy is not RoutingPolicy.CACHE_AWARE or not prompt.keys
    if blind or all(view.stale and not view.sent_blocks for view in candidates):
        return Knowledge.LOAD
    return prompt.knowledge


def _judge(prompt: Prompt, candidates: Sequence[CandidateView]) -> list[_Judged]:
    paces = Paces.learn(candidates)
    return [_Judged(view, score(prompt, view, paces.of(view))) for view in candidates]


def _evicted(prompt: Prompt, view: CandidateView, expected: int) -> int:
    if view.stale or view.blocks_blank is None or prompt.block_size < 1:
        return 0
    new = needed_blocks(prompt) - expected // prompt.block_size
    return max(0, new - view.blocks_blank) * prompt.block_size


def _fits(prompt: Prompt, view: CandidateView) -> bool:
    if view.stale or view.blocks_free is None or not view.requests:
        return True
    return needed_blocks(prompt) <= view.blocks_free


def _choose(judged: list[_Judged], policy: RoutingPolicy, knowledge: Knowledge) -> tuple[_Judged, Reason]:
    if policy is RoutingPolicy.ROUND_ROBIN:
        return min(judged, key=lambda one: (one.view.last_used, one.view.id)), Reason.ROUND_ROBIN
    fitting = [one for one in judged if one.score.fits]
    pool = fitting or judged
    if not fitting or policy is RoutingPolicy.LEAST_LOADED:
        return _least_loaded(pool), Reason.LEAST_LOADED if fitting else Reason.NO_FIT
    if knowledge is Knowledge.LOAD:
        return _least_loaded(pool), Reason.LOAD_ONLY
    chosen = _cheapest(pool, [one.score.seconds for one in pool])
    return chosen, _reason(chosen, judged)


def _leading(
    judged: list[_Judged], chosen: _Judged, *, policy: RoutingPolicy, knowledge: Knowledge
) -> list[CandidateScore]:
    others = [one for one in judged if one is not chosen]
    second = judged.index(_choose(others, policy, knowledge)[0]) if others else None
    known = [(one.view.matched_blocks, one.view.requests) for one in judged]
    return [judged[place].score for place in leading_places(known, judged.index(chosen), second)]


def _least_loaded(pool: list[_Judged]) -> _Judged:
    """By waiting work alone, as if no cache were known; where nothing waits, by number of requests."""
    return _cheapest(pool, [_waiting_seconds(one.score) for one in pool], blind=True)


def _waiting_seconds(score: CandidateScore) -> float:
    work = score.queued_tokens + score.inflight_tokens
    return work / score.tokens_per_second + score.inter_token_seconds * math.ceil(work / score.batched_tokens)


def _cheapest(pool: list[_Judged], seconds: list[float], *, blind: bool = False) -> _Judged:
    bound = min(seconds) * (1 + TIE)
    tied = [one for one, cost in zip(pool, seconds, strict=True) if cost <= bound]
    return min(
        tied,
        key=lambda one: (
            0 if blind else -one.score.expected_tokens,
            one.view.requests,
            one.view.last_used,
            one.view.id,
        ),
    )


def _reason(chosen: _Judged, judged: list[_Judged]) -> Reason:
    longest = max(one.score.expected_tokens for one in judged)
    if not longest:
        return Reason.COLD
    return Reason.LONGEST_PREFIX if chosen.score.expected_tokens == longest else Reason.LOAD_OVER_PREFIX
