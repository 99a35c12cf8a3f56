"""Hit ratio of a pool over a sliding window: by its engines' counters, or by what answers say came from cache."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cachefleet_core.fleet_status.pool_facts import BY_ANSWERS, BY_ENGINES, HitRatio
from cachefleet_core.pool.policy import HitObjective
from cachefleet_core.report_frames import State

DEFAULT_WINDOW_SECONDS: Final = 600.0
"""Of a pool without an objective."""
BUCKETS: Final = 60
"""The window moves in steps of a sixtieth."""
FAIR_SHARE: Final = 0.1
"""Of the tokens that engines have looked up, those of answers that tell must be so many at least to speak for all."""


@dataclass(slots=True)
class Counters:
    """One engine's cumulative counters, turned into increments."""

    queries: int | None = None
    hits: int = 0

    def advance(self, state: State) -> tuple[int, int]:
        """Tokens looked up and found since the last State; 0 at the first, all at a restart of the engine."""
        first, restarted = self.queries is None, state.prefix_queries < (self.queries or 0)
        before_queries, before_hits = (0, 0) if restarted else (self.queries or 0, self.hits)
        self.queries, self.hits = state.prefix_queries, state.prefix_hits
        if first:
            return 0, 0
        return state.prefix_queries - before_queries, max(0, state.prefix_hits - before_hits)


@dataclass(slots=True)
class HitWindow:
    """Sums over the last ``seconds``, kept in at most BUCKETS + 1 parts."""

    seconds: float
    _parts: deque[tuple[float, int, int]] = field(default_factory=deque)

    def add(self, queries: int, hits: int, now: float) -> None:
        """Add tokens looked up and found at ``now``."""
        if not queries and not hits:
            return
        self._expire(now)
        width = self.seconds / BUCKETS
        if self._parts and now - self._parts[-1][0] < width:
            start, queried, hit = self._parts.pop()
            self._parts.append((start, queried + queries, hit + hits))
        else:
            self._parts.append((now, queries, hits))

    def sums(self, now: float) -> tuple[int, int]:
        """Tokens looked up and found within the window."""
        self._expire(now)
        return max(0, sum(part[1] for part in self._parts)), max(0, sum(part[2] for part in self._parts))

    def _expire(self, now: float) -> None:
        while self._parts and now - self._parts[0][0] > self.seconds:
            self._parts.popleft()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTokens:
    """Prompt tokens of a window, and those from cache: by the engines' counters, and by their answers.

    The counters are of an engine's own blocks alone, so they know nothing of a connector's; and what did not come
    through this replica only they know.
    """

    queried: int = 0
    hit: int = 0
    answered: int = 0
    """Of prompts whose answers told what came from cache."""
    served: int = 0

    def by_answers(self, min_tokens: int) -> bool:
        """Whether answers tell of a fair part of all, and of enough to judge by, so that the ratio goes by them."""
        fair = 0 < self.answered >= FAIR_SHARE * self.queried
        return fair and (self.answered >= min_tokens or self.queried < min_tokens)


def hit_ratio(tokens: WindowTokens, *, seconds: float, objective: HitObjective | None, wall: float) -> HitRatio:
    """The hit ratio of a window of so many seconds that ends at ``wall``, in Unix seconds."""
    min_tokens = objective.min_tokens if objective else 0
    by_answers = tokens.by_answers(min_tokens)
    cached, total = (tokens.served, tokens.answered) if by_answers else (tokens.hit, tokens.queried)
    return HitRatio(
        value=_share(cached, total),
        window_seconds=seconds,
        objective=objective.ratio if objective else None,
        by=BY_ANSWERS if by_answers else BY_ENGINES,
        tokens=total,
        queried_tokens=tokens.queried,
        hit_tokens=tokens.hit,
        answered_tokens=tokens.answered,
        served_tokens=tokens.served,
        counted=_share(tokens.hit, tokens.queried),
        sampled=total >= min_tokens,
        sampled_at=datetime.fromtimestamp(wall, UTC),
    )


def _share(cached: int, total: int) -> float | None:
    """At most 1, as counters may be read between two of one request; None where there were none."""
    return min(1.0, cached / total) if total else None
