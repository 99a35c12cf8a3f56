"""What is remembered of a decision. No prompt, token id, salt or credential has a field here."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_controlplane.routing import CandidateScore


@dataclass(frozen=True, slots=True)
class LegRecord:
    """One attempt to have a worker answer; ``status`` is the worker's HTTP status where it gave one."""

    worker: str
    outcome: str
    status: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRecord:
    """What one worker would have cost, as the decision saw it: the parts of its score, in tokens and seconds."""

    worker: str
    pool: str
    matched_blocks: int
    predicted_tokens: int
    expected_tokens: int
    queued_tokens: int
    inflight_tokens: int
    uncached_tokens: int
    evicted_tokens: int
    tokens_per_second: float
    inter_token_seconds: float
    batched_tokens: int
    requests: int
    seconds: float
    report_age: float | None
    fits: bool

    @classmethod
    def of(cls, score: CandidateScore) -> CandidateRecord:
        return cls(**{name: getattr(score, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One request: where it went, why, and what the cache then did. ``at`` is Unix time in seconds.

    ``cached_tokens`` and what follows it are None where the answer did not tell or did not come; ``status`` is the
    HTTP status the client got (499 where it went away before one). ``candidates`` are those that tell most, the chosen
    one first (see ``decisions.leading_places``), and ``candidates_left_out`` is the number of the others.
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
    candidates_left_out: int = 0
