"""Steps of the history, and hot prefixes, to schemas. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from cachefleet_controlplane.admin.decisions.decision_presenters import lost_tokens
from cachefleet_controlplane.admin.history import history_schemas as schemas
from cachefleet_controlplane.history.cache_history import HOUR_STEPS, STEP_SECONDS, Gauges, HistoryStep
from cachefleet_controlplane.prompt_causes.cause_ledger import Offence
from cachefleet_controlplane.prompt_causes.mends import WHY, mend
from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from cachefleet_controlplane.routing.lost_tokens import LostCause

_NOT_SAMPLED = dict.fromkeys(Gauges.__dataclass_fields__)


def history(steps: Iterable[HistoryStep]) -> schemas.History:
    """The steps as points."""
    return schemas.History(step_seconds=STEP_SECONDS, points=tuple(map(_point, steps)))


def _point(step: HistoryStep) -> schemas.HistoryPoint:
    gauges = step.gauges
    sampled = _NOT_SAMPLED if gauges is None else {name: getattr(gauges, name) for name in _NOT_SAMPLED}
    return schemas.HistoryPoint.model_validate(
        {
            "at": _time(step.at),
            "requests": step.requests,
            "failed": step.failed,
            "prompt_tokens": step.prompt_tokens,
            "served_tokens": step.served_tokens,
            "recomputed_tokens": step.prompt_tokens - step.served_tokens,
            "lost_tokens": step.lost,
            "ttft_seconds": step.ttft_seconds,
            **sampled,
        }
    )


def lost_hits(steps: Sequence[HistoryStep], now: float, *, bucket_seconds: int) -> schemas.LostHits:
    """The steps of the hour before ``now``, together and in buckets."""
    lost = _causes(steps)
    until = int(now // STEP_SECONDS + 1) * STEP_SECONDS
    return schemas.LostHits(
        since=_time(until - HOUR_STEPS * STEP_SECONDS),
        until=_time(now),
        prompt_tokens=sum(step.prompt_tokens for step in steps),
        served_tokens=sum(step.served_tokens for step in steps),
        causes=tuple(lost_tokens(cause, tokens) for cause, tokens in lost.most_common()),
        first_seen=tuple(_first_seen(steps)),
        shortfall_tokens=sum(step.shortfall_tokens for step in steps),
        surplus_tokens=sum(step.surplus_tokens for step in steps),
        bucket_seconds=bucket_seconds,
        buckets=tuple(_buckets(steps, bucket_seconds)),
    )


def prompt_causes(offences: Iterable[Offence]) -> schemas.PromptCauses:
    """What causes in prompts cost tenants."""
    return schemas.PromptCauses(items=tuple(map(_offence, offences)))


def _offence(offence: Offence) -> schemas.PromptCauseOfTenant:
    cause, part, role = offence.place
    return schemas.PromptCauseOfTenant(
        pool=offence.pool,
        tenant=offence.tenant,
        cause=cause,
        why=WHY[cause],
        part=part,
        role=role,
        mend=mend(cause, part),
        tokens=offence.tokens,
        points=round(offence.points, 1),
        tokens_per_day=offence.tokens_a_day,
    )


def _buckets(steps: Sequence[HistoryStep], seconds: int) -> Iterable[schemas.LostBucket]:
    by_bucket: dict[int, list[HistoryStep]] = {}
    for step in steps:
        if step.requests:
            by_bucket.setdefault(step.at // seconds * seconds, []).append(step)
    for at, within in by_bucket.items():
        yield schemas.LostBucket(
            at=_time(at),
            prompt_tokens=sum(step.prompt_tokens for step in within),
            served_tokens=sum(step.served_tokens for step in within),
            causes=dict(_causes(within)),
        )


def _first_seen(steps: Iterable[HistoryStep]) -> Iterable[schemas.FirstSeen]:
    found: Counter[PromptCause] = Counter()
    for step in steps:
        found.update(step.first_seen)
    for cause, tokens in found.most_common():
        yield schemas.FirstSeen(cause=cause, why=WHY[cause], tokens=tokens)


def _causes(steps: Iterable[HistoryStep]) -> Counter[LostCause]:
    found: Counter[LostCause] = Counter()
    for step in steps:
        found.update(step.lost)
    return found


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
