"""Has native code choose among a table's candidates, and makes a decision of its choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import cachefleet_native
from msgspec.structs import replace

from cachefleet_controlplane.index.block_index import IndexDefectError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import (
    NO_CHUNKS,
    CandidateScore,
    Decision,
    Knowledge,
    NextChoice,
    Prompt,
    Reason,
    RoutingPolicy,
    Verdict,
    full_name,
    unplaced,
    verdict_of,
)
from cachefleet_controlplane.routing.later_scores import LaterScores
from cachefleet_controlplane.routing.prompt_blocks import wanted_blocks
from cachefleet_controlplane.routing.specific_reason import specific_reason
from cachefleet_controlplane.selection.eligibility import Selection
from cachefleet_controlplane.selection.worker_table import WorkerTable
from cachefleet_controlplane.workers.worker import Worker

_REASONS: Final = {reason.value: reason for reason in Reason}
_ORDERS: Final = {
    RoutingPolicy.CACHE_AWARE: "cost",
    RoutingPolicy.LEAST_LOADED: "load",
    RoutingPolicy.ROUND_ROBIN: "turn",
}


def decide(
    index: cachefleet_native.Index,
    table: WorkerTable,
    prompt: Prompt,
    keys: bytes,
    selection: Selection,
    *,
    refuted: Sequence[tuple[WorkerId, int]] = (),
    tokens_each: float | None = None,
) -> Decision:
    """Decide on one of a table's workers by what the index says of them and ``keys``. IndexDefectError.

    Of workers that lack a block which it says they hold, only ``refuted`` blocks are counted on. ``tokens_each``: the
    keys are those of a text's chunks of so many tokens.
    """
    policy, now = selection.policy, selection.now
    choice = _choose(index, table, prompt, keys, selection, refuted=refuted, tokens_each=tokens_each)
    if choice is None:
        return unplaced(prompt, Reason.NO_READY_WORKER, policy=policy, knowledge=Knowledge.LOAD, at=now)
    knowledge = Knowledge.LOAD if choice.blind else prompt.knowledge
    reason, workers, count = _reason(choice, prompt, policy), table.workers, choice.candidates
    scores = _all(choice, workers) if selection.every else ()
    if verdict_of(reason) is not Verdict.ROUTE:
        decision = unplaced(prompt, reason, policy=policy, knowledge=knowledge, at=now)
        leading = _leading(choice, workers)
        return replace(decision, candidates=count, largest_blocks=choice.largest, leading=leading, scores=scores)
    following = _next(choice, workers, prompt, selection, knowledge) if selection.more else ()
    return _routed(choice, workers, prompt, selection, knowledge, scores=scores, following=following)


def _routed(
    choice: cachefleet_native.Choice,
    workers: Sequence[Worker],
    prompt: Prompt,
    selection: Selection,
    knowledge: Knowledge,
    *,
    scores: Sequence[CandidateScore] = (),
    following: Sequence[NextChoice] = (),
) -> Decision:
    worker, exact = workers[choice.first], knowledge is Knowledge.EXACT
    return Decision(
        verdict=Verdict.ROUTE,
        reason=_reason(choice, prompt, selection.policy),
        policy=selection.policy,
        knowledge=knowledge,
        worker=worker.name,
        id=worker.id,
        pool=worker.pool,
        url=worker.endpoint.url if worker.endpoint else "",
        rank=worker.rank,
        prompt_tokens=prompt.tokens,
        predicted_tokens=choice.predicted_tokens,
        forecast_tokens=choice.forecast_tokens,
        matched_blocks=choice.matched_blocks,
        expected_tokens=choice.expected_tokens,
        elsewhere_blocks=choice.elsewhere_blocks,
        elsewhere_tokens=choice.elsewhere_tokens,
        loaded_tokens=choice.loaded_tokens,
        seconds=choice.seconds,
        report_age=choice.report_age,
        uncached_tokens=choice.uncached_tokens,
        prefix_tokens=choice.longest if exact else 0,
        excess_seconds=choice.excess if exact else 0.0,
        paid_seconds=prompt.paid_seconds,
        queue_seconds=choice.queue_seconds,
        candidates=choice.candidates,
        leading=_leading(choice, workers),
        scores=scores,
        next=following,
        at=selection.now,
    )


def _next(
    choice: cachefleet_native.Choice,
    workers: Sequence[Worker],
    prompt: Prompt,
    selection: Selection,
    knowledge: Knowledge,
) -> list[NextChoice]:
    known = replace(prompt, keys=b"", chunks=NO_CHUNKS)  # it may be kept for long

    def made(place: int) -> Decision:
        return _routed(choice.at(place), workers, known, selection, knowledge)

    return [
        NextChoice(full_name(worker.pool, worker.name), worker.endpoint.url, partial(made, place))
        for place, worker in enumerate(workers[number] for number in choice.next)
        if worker.endpoint
    ]


def _choose(
    index: cachefleet_native.Index,
    table: WorkerTable,
    prompt: Prompt,
    keys: bytes,
    selection: Selection,
    *,
    refuted: Sequence[tuple[WorkerId, int]],
    tokens_each: float | None,
) -> cachefleet_native.Choice | None:
    blind = selection.policy is RoutingPolicy.CACHE_AWARE and prompt.knowledge is Knowledge.LOAD
    try:
        return table.native.choose(
            index,
            keys,
            selection.now,
            prompt.tokens,
            prompt.block_size,
            wanted_blocks(prompt),
            "load" if blind else _ORDERS[selection.policy],
            [*selection.exclude] if selection.exclude else (),
            prompt.adapter,
            refuted=refuted,
            paid=prompt.paid_seconds,
            paid_tokens=prompt.paid_tokens,
            tokens_each=tokens_each,
            every=selection.every,
            more=selection.more,
        )
    except cachefleet_native.InternalError as error:
        raise IndexDefectError(str(error)) from error


def _reason(choice: cachefleet_native.Choice, prompt: Prompt, policy: RoutingPolicy) -> Reason:
    reason = _REASONS[choice.reason]
    if policy is RoutingPolicy.LEAST_LOADED and reason is Reason.LOAD_ONLY:
        return Reason.LEAST_LOADED
    return specific_reason(reason, prompt, predicted=choice.predicted_tokens)


def _leading(choice: cachefleet_native.Choice, workers: Sequence[Worker]) -> LaterScores:
    make, encode = partial(_scores, choice.leading, workers), partial(choice.leading_records, workers)
    return LaterScores(choice.leading_count, make, encode)


def _all(choice: cachefleet_native.Choice, workers: Sequence[Worker]) -> LaterScores:
    return LaterScores(choice.candidates, partial(_scores, choice.scores, workers))


def _scores(
    numbers: Callable[[], Sequence[tuple[int, dict[str, Any]]]], workers: Sequence[Worker]
) -> list[CandidateScore]:
    return [
        CandidateScore(worker=workers[place].name, id=workers[place].id, pool=workers[place].pool, **rest)
        for place, rest in numbers()
    ]
