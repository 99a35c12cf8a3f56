"""A decision as others see it: as headers of an answer, as the body of ``POST /v1/route``, as a record."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Final

import msgspec

from cachefleet_controlplane.gateway.answer import Usage
from cachefleet_controlplane.gateway.headers import Header
from cachefleet_controlplane.gateway.request import Ask
from cachefleet_controlplane.renderer import Rendering
from cachefleet_controlplane.routing import Decision
from cachefleet_controlplane.store.records import CandidateRecord, DecisionRecord, LegRecord

CLIENT_GONE_STATUS: Final = 499
"""Recorded where the client went away before it got a status."""


def decision_headers(decision_id: str, decision: Decision | None) -> list[Header]:
    """What every answer tells of its decision."""
    headers = [(b"x-cachefleet-decision", decision_id.encode())]
    if decision is not None:
        headers.append((b"x-cachefleet-knowledge", decision.knowledge.encode()))
    if decision is not None and decision.worker:
        headers.append((b"x-cachefleet-worker", decision.worker.encode()))
    return headers


def decision_body(decision_id: str, ask: Ask, decision: Decision, rendering: Rendering) -> bytes:
    """The decision alone, with what it rests on; nothing of the prompt but its length."""
    return msgspec.json.encode(
        {
            "id": decision_id,
            "object": "cachefleet.decision",
            "model": ask.model,
            "endpoint": ask.endpoint,
            "verdict": decision.verdict,
            "reason": decision.reason,
            "policy": decision.policy,
            "knowledge": decision.knowledge,
            "rendered_by": rendering.rung,
            "render_failure": rendering.reason,
            "worker": decision.worker or None,
            "pool": decision.pool or None,
            "url": decision.url or None,
            "rank": decision.rank,
            "prompt_tokens": decision.prompt_tokens,
            "predicted_tokens": decision.predicted_tokens,
            "candidates": [asdict(CandidateRecord.of(score)) for score in decision.scores],
        }
    )


@dataclass(slots=True)
class Trace:
    """What becomes of one request, noted as it happens; turned into a record at its end."""

    id: str
    at: float
    model: str
    endpoint: str
    decision: Decision | None = None
    usage: Usage | None = None
    ttft_seconds: float | None = None
    status: int = CLIENT_GONE_STATUS
    legs: list[LegRecord] = field(default_factory=list)

    def record(self) -> DecisionRecord | None:
        """None where the request ended before anything was decided."""
        decision = self.decision
        if decision is None:
            return None
        return DecisionRecord(
            id=self.id,
            at=self.at,
            model=self.model,
            pool=decision.pool,
            endpoint=self.endpoint,
            policy=decision.policy,
            verdict=decision.verdict,
            reason=decision.reason,
            worker=decision.worker,
            knowledge=decision.knowledge,
            prompt_tokens=decision.prompt_tokens,
            predicted_tokens=decision.predicted_tokens,
            cached_tokens=None if self.usage is None else self.usage.cached_tokens,
            completion_tokens=None if self.usage is None else self.usage.completion_tokens,
            ttft_seconds=self.ttft_seconds,
            status=self.status,
            legs=tuple(self.legs),
            candidates=tuple(CandidateRecord.of(score) for score in decision.leading),
            candidates_left_out=len(decision.scores) - len(decision.leading),
        )
