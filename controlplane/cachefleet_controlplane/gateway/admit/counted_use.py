"""What a request used, as limits and usage count it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_core.tenancy import TenantId

HOUR: Final = 3600
ANSWERED_STATUS: Final = 200
Used = tuple[int, int, int]
"""Tokens of a request: of its prompt, of these from a cache, and generated ones."""
Charge = Callable[[DecisionTrace, Used], int]
"""Tells what a request is charged for what it used, in picos."""


def used_by(trace: DecisionTrace) -> Used:
    """What the worker said that it used; where it told none, what is known: of an answer cut short what was produced,
    and of the prompt what the decision predicted to be cached.
    """
    usage, decision = trace.usage, trace.answered
    if usage is not None:
        return usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens or 0
    if decision is not None and (cut := trace.cut_short) is not None:
        known = decision.forecast_tokens if cut.cached_tokens is None else cut.cached_tokens
        return cut.prompt_tokens, min(cut.prompt_tokens, known), cut.completion_tokens or 0
    if decision is not None and trace.status == ANSWERED_STATUS:
        return decision.prompt_tokens, decision.forecast_tokens, 0
    return 0, 0, 0


def usage_of(tenant: TenantId, key: str, trace: DecisionTrace, used: Used, charged: int) -> UsageRecord:
    """One request as usage."""
    return UsageRecord(
        hour=int(trace.at) // HOUR * HOUR,
        tenant=tenant,
        model=trace.model,
        requests=1,
        prompt_tokens=used[0],
        cached_tokens=used[1],
        completion_tokens=used[2],
        charged=charged,
        key=key,
    )
