"""The cost of serving a prompt on each worker, and the choice of one: a pure function of prompt and workers.

The cost is that of ``cost``, with what waits there by the worker's last report and what this replica has sent that the
report does not show yet.

Of the blocks that the index says a worker holds, or that were just sent there, only that share is counted as cached
that its answers so far make credible (``hit_trust``).

A worker is a candidate only where the request has room, as ``capacity`` computes it: an idle worker always has, unless
the request needs more blocks than it has; stale reports exclude nobody. Where no worker has room the request is to
wait, and where none ever can have, it is refused. ``roundRobin``, a baseline for comparison, ignores room.

Costs within TIE of the cheapest are a tie. Among tied workers the longer prefix wins, then the fewer requests, then the
least recently used one, so that cold prompts spread. Nothing here reads a clock or a random number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.routing.capacity import certainly_used
from cachefleet_controlplane.routing.cost import cost_of
from cachefleet_controlplane.routing.decision import (
    CandidateScore,
    CandidateView,
    Decision,
    Knowledge,
    Prompt,
    Reason,
    RoutingPolicy,
    Verdict,
    verdict_of,
)
from cachefleet_controlplane.routing.later_scores import LEADING, LaterScores, leading_places
from cachefleet_controlplane.routing.prompt_blocks import Cached, cached_tokens, wanted_blocks
from cachefleet_controlplane.routing.throughput import Throughput, Throughputs
from cachefleet_controlplane.routing.told_reason import told_reason

TIE: Final = 0.05


def decide(prompt: Prompt, candidates: Sequence[CandidateView], policy: RoutingPolicy, now: float) -> Decision:
    """ROUTE to a candidate; QUEUE where none has room now; REJECT where there is none, or none can ever have room."""
    knowledge = _knowledge(prompt, candidates, policy)
    if not candidates:
        return unplaced(prompt, Reason.NO_READY_WORKER, policy=policy, knowledge=knowledge, at=now)
    judged = _judge(prompt, candidates)
    chosen, reason = _choose(judged, policy, knowledge)
    leading = LaterScores(
        min(LEADING, len(judged)), partial(_leading, judged, chosen, policy=policy, knowledge=knowledge)
    )
    scores = tuple(one.score for one in judged)
    if verdict_of(reason) is not Verdict.ROUTE:
        return unplaced(prompt, reason, policy=policy, knowledge=knowledge, leading=leading, scores=scores, at=now)
    prefix, excess = _excess(chosen, judged) if knowledge is Knowledge.EXACT else (0, 0.0)
    return Decision(
        verdict=Verdict.ROUTE,
        reason=told_reason(reason, prompt, predicted=chosen.score.predicted_tokens),
        policy=policy,
        knowledge=knowledge,
        worker=chosen.view.worker,
        id=chosen.view.id,
        pool=chosen.view.pool,
        url=chosen.view.url,
        rank=chosen.view.rank,
        prompt_tokens=prompt.tokens,
        predicted_tokens=chosen.score.predicted_tokens,
        loaded_tokens=chosen.score.loaded_tokens,
        uncached_tokens=chosen.score.uncached_tokens,
        prefix_tokens=prefix,
        excess_seconds=excess,
        paid_seconds=prompt.paid_seconds,
        queue_seconds=(chosen.view.queued_tokens + chosen.view.inflight_tokens) / chosen.score.tokens_per_second,
        leading=leading,
        scores=scores,
        at=now,
    )


def unplaced(
    prompt: Prompt,
    reason: Reason,
    *,
    policy: RoutingPolicy,
    knowledge: Knowledge,
    leading: Sequence[CandidateScore] = (),
    scores: Sequence[CandidateScore] = (),
    at: float,
) -> Decision:
    """A decision without a worker, with the verdict that goes with ``reason``."""
    return Decision(
        verdict=verdict_of(reason),
        reason=reason,
        policy=policy,
        knowledge=knowledge,
        prompt_tokens=prompt.tokens,
        uncached_tokens=prompt.tokens,
        leading=leading,
        scores=scores,
        at=at,
    )


def score(prompt: Prompt, view: CandidateView, throughput: Throughput, cached: Cached | None = None) -> CandidateScore:
    """The cost of a prompt on one candidate at this throughput; with ``cached``, of a view that is of no prompt."""
    cached = cached or Cached.of(view)
    stale, needed, worth = cached.stale, wanted_blocks(prompt), view.worth
    held, predicted, there = cached_tokens(prompt, cached, view.trust, stale=stale)
    expected = max(predicted, there)
    uncached, loaded = prompt.tokens - expected, expected - there
    evicted = 0 if stale or view.blocks_blank is None else _evicted(prompt, view, there, needed=needed)
    taken = _taken(view, needed=needed, held=held) if held else needed
    paid = prompt.paid_seconds if expected < prompt.paid_tokens else 0.0
    work = view.queued_tokens + view.inflight_tokens, uncached, evicted
    cost = cost_of(*work, throughput=throughput, worth=worth, paid=paid, loaded=loaded, adapter=view.adapter_seconds)
    return CandidateScore(
        view.worker,
        view.id,
        view.pool,
        cached.matched,
        predicted,
        expected,
        view.queued_tokens,
        view.inflight_tokens,
        uncached,
        evicted,
        throughput.tokens_per_second,
        throughput.inter_token_seconds,
        throughput.batched_tokens,
        view.requests,
        cost.seconds,
        cached.report_age,
        taken,
        view.blocks_free,
        view.blocks_reserved,
        view.blocks_total,
        stale or _has_room(view, needed=needed, taken=taken),
        round(worth.eviction * evicted) if evicted else 0,
        cost.others,
        cost.paid,
        loaded,
        cost.loading,
        throughput.loading_measured,
        cost.adapter,
    )


def fits(view: CandidateView, *, needed: int, held: int) -> bool:
    """Whether a worker has room for a request that needs so many blocks, of which it holds so many.

    An idle worker has room unless it has too few blocks at all; so has one whose report is stale or tells no blocks.
    """
    return view.stale or _has_room(view, needed=needed, taken=_taken(view, needed=needed, held=held))


def _has_room(view: CandidateView, *, needed: int, taken: int) -> bool:
    """For a worker with a fresh report."""
    possible = view.blocks_total is None or needed <= view.blocks_total
    return possible and (view.blocks_free is None or not view.requests or taken <= view.blocks_free)


class _Judged(Struct, frozen=True):
    view: CandidateView
    score: CandidateScore
    could: bool
    """Whether it could ever have room."""


def _knowledge(prompt: Prompt, candidates: Sequence[CandidateView], policy: RoutingPolicy) -> Knowledge:
    """What the choice rests on: less than what is known where the policy or stale reports forbid it."""
    blind = policy is not RoutingPolicy.CACHE_AWARE or not prompt.keys
    if blind or all(view.stale and not view.sent_blocks for view in candidates):
        return Knowledge.LOAD
    return prompt.knowledge


def _judge(prompt: Prompt, candidates: Sequence[CandidateView]) -> list[_Judged]:
    throughputs, needed = Throughputs.learn(candidates), wanted_blocks(prompt)
    return [_Judged(view, score(prompt, view, throughputs.of(view)), could(view, needed=needed)) for view in candidates]


def _evicted(prompt: Prompt, view: CandidateView, expected: int, *, needed: int) -> int:
    """Tokens to evict, for a worker with a fresh report."""
    if view.blocks_blank is None or prompt.block_size < 1:
        return 0
    new = needed - expected // prompt.block_size
    return max(0, new - view.blocks_blank) * prompt.block_size


def could(view: CandidateView, *, needed: int) -> bool:
    """Whether a worker has so many blocks at all, as far as is known; else it can never have room."""
    return view.stale or view.blocks_total is None or needed <= view.blocks_total


def _taken(view: CandidateView, *, needed: int, held: int) -> int:
    """Blocks that a request takes of the free ones (``capacity``)."""
    return needed - certainly_used(held, idle=view.blocks_idle, used=view.blocks_used)


def _choose(judged: list[_Judged], policy: RoutingPolicy, knowledge: Knowledge) -> tuple[_Judged, Reason]:
    if policy is RoutingPolicy.ROUND_ROBIN:
        return min(judged, key=lambda one: (one.view.last_used, one.view.id)), Reason.ROUND_ROBIN
    fitting = [one for one in judged if one.score.fits]
    if not fitting:
        return _least_loaded(judged), _shortage(judged)
    if policy is RoutingPolicy.LEAST_LOADED:
        return _least_loaded(fitting), Reason.LEAST_LOADED
    if knowledge is Knowledge.LOAD:
        return _least_loaded(fitting), Reason.LOAD_ONLY
    chosen = _cheapest(fitting, [one.score.seconds for one in fitting])
    return chosen, _reason(chosen, judged)


def _shortage(judged: list[_Judged]) -> Reason:
    """The reason where no worker has room."""
    return Reason.NO_ROOM if any(one.could for one in judged) else Reason.TOO_LARGE


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
    throughput = Throughput(score.tokens_per_second, score.inter_token_seconds, score.batched_tokens)
    return throughput.seconds(score.queued_tokens + score.inflight_tokens)


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


def _excess(chosen: _Judged, judged: list[_Judged]) -> tuple[int, float]:
    """The longest prefix that any candidate holds, in tokens, and the seconds waited for want of another with it."""
    longest = max(one.score.expected_tokens for one in judged)
    if not longest or chosen.score.expected_tokens < longest:
        return longest, 0.0
    others = [_waiting_seconds(one.score) for one in judged if one is not chosen and one.score.fits]
    return longest, max(0.0, _waiting_seconds(chosen.score) - min(others)) if others else 0.0


def _reason(chosen: _Judged, judged: list[_Judged]) -> Reason:
    longest = max(one.score.expected_tokens for one in judged)
    if not longest:
        return Reason.COLD
    return Reason.LONGEST_PREFIX if chosen.score.expected_tokens == longest else Reason.LOAD_OVER_PREFIX
