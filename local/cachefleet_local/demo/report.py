"""Results of the demo: sums, table, JSON and checks (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.table import Table

GOAL: Final = 0.65
"""Largest share of round robin's recomputed tokens that cache-aware routing may recompute."""
TOLERANCE: Final = 0.01
"""Relative difference allowed between usage and the engines' counters, which count a preempted request twice."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of one request."""

    number: int
    failure: str = ""
    """Why it failed; "" for an answer."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """As vLLM reported it in this answer's usage."""
    ttft_seconds: float = 0.0
    worker: str = ""
    knowledge: str = ""
    decision: str = ""
    at_seconds: float = 0.0
    """When it was sent, since the first of its phase."""


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """Counters of vLLM's /metrics, summed over the workers, over one phase."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Phase:
    """One policy's run over the whole trace."""

    policy: str
    answers: Sequence[Answer]
    predicted: dict[str, int]
    """By decision id: prompt tokens that the index expected to be cached on the worker chosen."""
    engines: EngineCounts
    seconds: float
    knowledge: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "knowledge", Counter(a.knowledge or "unknown" for a in self.served))

    @property
    def served(self) -> list[Answer]:
        """The answers of requests that did not fail."""
        return [answer for answer in self.answers if not answer.failure]

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all served requests, from usage."""
        return sum(answer.prompt_tokens for answer in self.served)

    @property
    def cached_tokens(self) -> int:
        """Of the prompt tokens, those that vLLM reported as cached."""
        return sum(answer.cached_tokens for answer in self.served)

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that were not cached."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def predicted_tokens(self) -> int:
        """Prompt tokens that the index expected to be cached, over all served requests."""
        return sum(self.predicted.get(answer.decision, 0) for answer in self.served)

    @property
    def overpredicted_tokens(self) -> int:
        """Tokens predicted but not cached, summed request by request: evicted between decision and admission."""
        return sum(max(0, self.predicted.get(a.decision, 0) - a.cached_tokens) for a in self.served)

    @property
    def hit_ratio(self) -> float:
        """Share of prompt tokens that were cached; 0 where there are none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def ttft(self, percent: float) -> float:
        """Percentile of the time to first token, in seconds."""
        return percentile([answer.ttft_seconds for answer in self.served], percent)

    def as_json(self) -> dict[str, Any]:
        """The phase as it stands in the result file; ratios and seconds rounded."""
        return {
            "requests": len(self.answers),
            "failed_requests": len(self.answers) - len(self.served),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "hit_ratio": round(self.hit_ratio, 4),
            "predicted_tokens": self.predicted_tokens,
            "overpredicted_tokens": self.overpredicted_tokens,
            "ttft_p50_seconds": round(self.ttft(50), 6),
            "ttft_p95_seconds": round(self.ttft(95), 6),
            "knowledge": dict(sorted(self.knowledge.items())),
            "workers": dict(sorted(Counter(answer.worker for answer in self.served).items())),
            "engine_prompt_tokens": self.engines.prompt_tokens,
            "engine_cached_tokens": self.engines.cached_tokens,
            "seconds": round(self.seconds, 3),
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile; 0 for no values."""
    if not values:
        return 0.0
    rank = max(1, -(-len(values) * percent // 100))
    return sorted(values)[int(rank) - 1]


def recomputed_share(round_robin: Phase, cache_aware: Phase) -> float:
    """Tokens that cache-aware routing recomputed, as a share of round robin's; 1 where that recomputed none."""
    if not round_robin.recomputed_tokens:
        return 1.0
    return cache_aware.recomputed_tokens / round_robin.recomputed_tokens


def objections(round_robin: Phase, cache_aware: Phase) -> list[str]:
    """Why this run does not show the expected result; empty where it does."""
    found = []
    for phase in (round_robin, cache_aware):
        found += [f"{phase.policy}: request {a.number} failed: {a.failure}" for a in phase.answers if a.failure][:3]
        found += _disagreement(phase)
    share = recomputed_share(round_robin, cache_aware)
    if share > GOAL:
        found.append(f"cache-aware routing recomputed {share:.2f} of what round robin did; the goal is {GOAL}")
    return found


def _disagreement(phase: Phase) -> list[str]:
    pairs = (
        ("prompt", phase.prompt_tokens, phase.engines.prompt_tokens),
        ("cached", phase.cached_tokens, phase.engines.cached_tokens),
    )
    return [
        f"{phase.policy}: the answers say {told} {name} tokens, the engines' counters {counted}"
        for name, told, counted in pairs
        if abs(told - counted) > TOLERANCE * max(told, counted)
    ]


def table(round_robin: Phase, cache_aware: Phase) -> Table:
    """Both phases side by side, as a table to print."""
    out = Table(title="The same agents' work on two workers", title_style="bold", caption_justify="left")
    out.add_column("")
    for name in ("round robin", "cache-aware"):
        out.add_column(name, justify="right")
    for label, left, right in _rows(round_robin, cache_aware):
        style = "bold" if label == "tokens recomputed" else ""
        out.add_row(label, left, right, style=style)
    return out


def _rows(left: Phase, right: Phase) -> list[tuple[str, str, str]]:
    def row(label: str, *texts: str) -> tuple[str, str, str]:
        return label, texts[0], texts[1]

    both = (left, right)
    levels = sorted({*left.knowledge, *right.knowledge})
    return [
        row("requests", *(f"{len(p.answers)}" for p in both)),
        row("prompt tokens", *(f"{p.prompt_tokens:,}" for p in both)),
        row("tokens served from cache (vLLM)", *(f"{p.cached_tokens:,}" for p in both)),
        row("tokens recomputed", *(f"{p.recomputed_tokens:,}" for p in both)),
        row("hit ratio", *(f"{p.hit_ratio:.1%}" for p in both)),
        row("tokens predicted by the index", *(f"{p.predicted_tokens:,}" for p in both)),
        row("  of these not served", *(f"{p.overpredicted_tokens:,}" for p in both)),
        row("time to first token, p50", *(f"{1000 * p.ttft(50):.0f} ms" for p in both)),
        row("time to first token, p95", *(f"{1000 * p.ttft(95):.0f} ms" for p in both)),
        *(row(f"decisions on {level} knowledge", *(f"{p.knowledge[level]}" for p in both)) for level in levels),
    ]
