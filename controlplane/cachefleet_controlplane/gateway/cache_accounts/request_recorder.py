"""At a request's end: what is kept of it to simulate with."""

from __future__ import annotations

from cachefleet_controlplane.gateway.placement.decision_trace import DecisionTrace
from cachefleet_controlplane.history.recorded_requests import RecordedRequest, RecordedRequests


def record(recorded: RecordedRequests, trace: DecisionTrace) -> None:
    """Keep a request that one worker has answered and whose engine tells what it served from cache; no other."""
    usage, decision, basis = trace.usage, trace.answered, trace.basis
    if not recorded.on or decision is None or basis is None or usage is None or not trace.attempts:
        return
    if usage.cached_tokens is None or not basis.single or not decision.pool:
        return
    recorded.add(
        RecordedRequest(
            trace.at,
            decision.pool,
            basis.keys,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens or 0,
            trace.ttft_seconds,
            (trace.queued_seconds or 0.0) + decision.queue_seconds,
        )
    )
