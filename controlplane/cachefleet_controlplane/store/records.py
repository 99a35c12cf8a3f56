"""What is remembered of a decision. No prompt, token id, salt or credential has a field here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LegRecord:
    """One attempt to have a worker answer; ``status`` is the worker's HTTP status where it gave one."""

    worker: str
    outcome: str
    status: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """What one worker would have cost; tokens and seconds, as the decision saw them."""

    worker: str
    matched_tokens: int
    predicted_tokens: int
    queued_tokens: float
    inflight_tokens: float
    uncached_tokens: float
    tokens_per_second: float
    seconds: float
    report_age_seconds: float | None
    excluded: str = ""
    """Why it was no candidate; "" where it was one."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One request: where it went, why, and what the cache then did. ``at`` is Unix time in seconds.

    ``cached_tokens`` and what follows it are None where the answer did not tell or did not come; ``status`` is the
    HTTP status the client got (499 where it went away before one).
    """

    id: str
    at: float
    model: str
    pool: str
    endpoint: str
    policy: str
    verdict: str
    reason: str
    worker: str
    knowledge: str
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_seconds: float | None = None
    status: int = 0
    legs: tuple[LegRecord, ...] = ()
    candidates: tuple[CandidateRecord, ...] = ()
