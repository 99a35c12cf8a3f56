"""Prefers the worker that served a conversation last, among equally good ones only (A18). Pure.

That worker is chosen only where it costs no more and holds no less of the prompt than the worker decided on.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from cachefleet_controlplane.routing.decision import (
    CandidateScore,
    Decision,
    NextChoice,
    RoutingPolicy,
    Verdict,
    full_name,
)

Again = Callable[[frozenset[str]], Decision]
"""Decides once more, with these workers excluded as well."""


def prefer_if_tied(decision: Decision, worker: str, again: Again) -> Decision:
    """The decision for ``worker`` where that is as good as ``decision``, which has all scores; else ``decision``."""
    if decision.verdict is not Verdict.ROUTE or decision.full_name == worker:
        return decision
    if decision.policy is not RoutingPolicy.CACHE_AWARE:
        return decision
    scores = list(decision.scores)
    chosen = next((score for score in scores if score.id == decision.id), None)
    if chosen is None or not any(_named(score) == worker and _as_good(score, chosen) for score in scores):
        return decision
    leant = again(frozenset(_named(score) for score in scores) - {worker})
    if leant.verdict is not Verdict.ROUTE or leant.full_name != worker:
        return decision
    others = [score for score in scores if score.id != leant.id]
    return replace(
        leant,
        elsewhere_blocks=max(score.matched_blocks for score in others),
        elsewhere_tokens=max(score.expected_tokens for score in others),
        reason=decision.reason,
        prefix_tokens=decision.prefix_tokens,
        paid_seconds=decision.paid_seconds,
        candidates=decision.candidates,
        leading=decision.leading,
        scores=decision.scores,
        next=_next(decision, leant),
    )


def _next(decision: Decision, leant: Decision) -> list[NextChoice]:
    """Who comes after a worker that was preferred to the one decided on: that one, then as before."""
    if leant.pool != decision.pool or not decision.next:
        return []
    first = NextChoice(decision.full_name, decision.url, lambda: decision)
    return [first, *(other for other in decision.next if other.full_name != leant.full_name)][: len(decision.next)]


def _as_good(score: CandidateScore, chosen: CandidateScore) -> bool:
    return score.fits and score.seconds <= chosen.seconds and score.matched_blocks >= chosen.matched_blocks


def _named(score: CandidateScore) -> str:
    return full_name(score.pool, score.worker)
