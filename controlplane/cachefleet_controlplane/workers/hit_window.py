"""Hit ratio of a pool: tokens that its engines looked up and found in their prefix caches, over a sliding window."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from cachefleet_core.report_frames import State

DEFAULT_WINDOW_SECONDS: Final = 600.0
"""Of a pool without an objective."""
BUCKETS: Final = 60
"""The window moves in steps of a sixtieth."""


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
