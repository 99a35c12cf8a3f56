"""The choice among candidates in plain Python: native code chooses alike (``native/src/choice.rs``, ``score.rs``)."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.routing.decision import (
    CandidateScore,
    Decision,
    Knowledge,
    Prompt,
    Reason,
    RoutingPolicy,
    Verdict,
    unplaced,
    verdict_of,
)
from cachefleet_controlplane.routing.hit_trust import WHOLE
from cachefleet_controlplane.routing.prompt_blocks import usable_blocks, wanted_blocks
from cachefleet_controlplane.routing.specific_reason import specific_reason
from tests.reference.candidate import Candidate
from tests.reference.capacity import certainly_used
from tests.reference.cost import cost_of
from tests.reference.throughput import Throughput, Throughputs

TIE: Final = 0.05
LEADING: Final = 8
"""Candidates kept with a decision."""


def decide(
    prompt: Prompt,
    candidates: Sequence[Candidate],
    policy: RoutingPolicy,
    now: float,
    measured: Sequence[Candidate] = (),
) -> Decision:
    """ROUTE to a candidate; QUEUE where none has room now; REJECT where there is none, or none can ever have room.

    Throughputs are learnt from those ``measured``, by default the candidates.
    """
    knowledge = _knowledge(prompt, candidates, policy)
    if not candidates:
        return unplaced(prompt, Reason.NO_READY_WORKER, policy=policy, knowledge=knowledge, at=now)
    judged = _judge(prompt, candidates, Throughputs.learn(measured or candidates))
    chosen, reason = _choose(judged, policy, knowledge)
    leading = _leading(judged, chosen, policy=policy, knowledge=knowledge)
    scores = tuple(one.score for one in judged)
    if verdict_of(reason) is not Verdict.ROUTE:
        decision = unplaced(prompt, reason, policy=policy, knowledge=knowledge, at=now)
        largest = max(view.blocks_total or 0 for view in candidates)
        return replace(decision, candidates=len(judged), largest_blocks=largest, leading=leading, scores=scores)
    prefix, excess = _excess(chosen, judged) if knowledge is Knowledge.EXACT else (0, 0.0)
    return Decision(
        verdict=Verdict.ROUTE,
        reason=specific_reason(reason, prompt, predicted=chosen.score.predicted_tokens),
        policy=policy,
        knowledge=knowledge,
        worker=chosen.view.worker,
        id=chosen.view.id,
        pool=chosen.view.pool,
        url=chosen.view.url,
        rank=chosen.view.rank,
        prompt_tokens=prompt.tokens,
        predicted_tokens=chosen.score.predicted_tokens,
        forecast_tokens=_forecast(prompt, chosen),
        matched_blocks=chosen.score.matched_blocks,
        expected_tokens=chosen.score.expected_tokens,
        elsewhere_blocks=max((one.matched_blocks for one in leading if one.id != chosen.view.id), default=0),
        elsewhere_tokens=max((one.expected_tokens for one in leading if one.id != chosen.view.id), default=0),
        loaded_tokens=chosen.score.loaded_tokens,
        seconds=chosen.score.seconds,
        report_age=chosen.score.report_age,
        uncached_tokens=chosen.score.uncached_tokens,
        prefix_tokens=prefix,
        excess_seconds=excess,
        paid_seconds=prompt.paid_seconds,
        queue_seconds=(chosen.view.queued_tokens + chosen.view.inflight_tokens) / chosen.score.tokens_per_second,
        candidates=len(judged),
        leading=leading,
        scores=scores,
        at=now,
    )


def _forecast(prompt: Prompt, chosen: _Judged) -> int:
    """Tokens that reports promise, or requests ahead leave there in time."""
    coming = usable_blocks(counted(chosen.view.coming_blocks, chosen.view.trust), prompt)
    return max(chosen.score.predicted_tokens, coming * prompt.block_size)


def cached_tokens(prompt: Prompt, view: Candidate) -> tuple[int, int, int]:
    """Blocks held on its device; tokens with what it loads; tokens there with what was just sent, even while stale."""
    matched, below = (0, 0) if view.stale else (view.matched_blocks, view.loadable_blocks)
    held = usable_blocks(counted(matched, view.trust), prompt)
    sent = usable_blocks(counted(view.sent_blocks, view.trust), prompt)
    loaded = usable_blocks(counted(matched + below, view.trust), prompt)
    return held, loaded * prompt.block_size, max(held, sent) * prompt.block_size


def counted(blocks: int, trust: int) -> int:
    """How many of so many blocks are counted on."""
    return blocks * trust // WHOLE


def score(prompt: Prompt, view: Candidate, throughput: Throughput) -> CandidateScore:
    """The cost of a prompt on one candidate at this throughput."""
    stale, needed, worth = view.stale, wanted_blocks(prompt), view.worth
    held, predicted, there = cached_tokens(prompt, view)
    expected = max(predicted, there)
    uncached, loaded = prompt.tokens - expected, expected - there
    evicted = 0 if stale or view.blocks_blank is None else _evicted(prompt, view, there, needed=needed)
    taken = _taken(view, needed=needed, held=held) if held else needed
    paid = prompt.paid_seconds if expected < prompt.paid_tokens else 0.0
    work = view.queued_tokens + view.inflight_tokens, uncached, evicted
    cost = cost_of(*work, throughput=throughput, worth=worth, paid=paid, loaded=loaded, adapter=view.adapter_seconds)
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
        tokens_per_second=throughput.tokens_per_second,
        inter_token_seconds=throughput.inter_token_seconds,
        batched_tokens=throughput.batched_tokens,
        requests=view.requests,
        seconds=cost.seconds,
        report_age=view.report_age,
        needed_blocks=taken,
        free_blocks=view.blocks_free,
        reserved_blocks=view.blocks_reserved,
        total_blocks=view.blocks_total,
        fits=stale or _has_room(view, needed=needed, taken=taken),
        worth_tokens=round(worth.eviction * evicted) if evicted else 0,
        others_seconds=cost.others,
        paid_seconds=cost.paid,
        loaded_tokens=loaded,
        loading_seconds=cost.loading,
        loading_measured=throughput.loading_measured,
        adapter_seconds=cost.adapter,
    )


def _has_room(view: Candidate, *, needed: int, taken: int) -> bool:
    """For a worker with a fresh report."""
    possible = view.blocks_total is None or needed <= view.blocks_total
    return possible and (view.blocks_free is None or not view.requests or taken <= view.blocks_free)


class _Judged(Struct, frozen=True):
    view: Candidate
    score: CandidateScore
    could: bool
    """Whether it could ever have room."""


def _knowledge(prompt: Prompt, candidates: Sequence[Candidate], policy: RoutingPolicy) -> Knowledge:
    """What the choice rests on: less than what is known where the policy or stale reports forbid it."""
    blind = policy is not RoutingPolicy.CACHE_AWARE or not prompt.keys
    if blind or all(view.stale and not view.sent_blocks for view in candidates):
        return Knowledge.LOAD
    return prompt.knowledge


def _judge(prompt: Prompt, candidates: Sequence[Candidate], throughputs: Throughputs) -> list[_Judged]:
    needed = wanted_blocks(prompt)
    return [_Judged(view, score(prompt, view, throughputs.of(view)), could(view, needed=needed)) for view in candidates]


def _evicted(prompt: Prompt, view: Candidate, expected: int, *, needed: int) -> int:
    """Tokens to evict, for a worker with a fresh report."""
    if view.blocks_blank is None or prompt.block_size < 1:
        return 0
    new = needed - expected // prompt.block_size
    return max(0, new - view.blocks_blank) * prompt.block_size


def could(view: Candidate, *, needed: int) -> bool:
    """Whether a worker has so many blocks at all, as far as is known; else it can never have room."""
    return view.stale or view.blocks_total is None or needed <= view.blocks_total


def _taken(view: Candidate, *, needed: int, held: int) -> int:
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


def leading_places(known: Sequence[tuple[int, int]], first: int, second: int | None) -> list[int]:
    """Positions of the candidates to keep with a decision, at most LEADING.

    The chosen and the second best one, then those that hold most of the prompt, less busy ones first. ``known`` are the
    matched blocks and the requests of each.
    """
    best, ranked = [first] if second is None else [first, second], [(-held, requests) for held, requests in known]
    order = nsmallest(LEADING, range(len(known)), key=ranked.__getitem__)
    return (best + [place for place in order if place not in best])[:LEADING]
