"""Prompt tokens a second that came from caches and that were computed, from what engines count. Pure state."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 10.0

Counters = Mapping[str, tuple[int, int]]
"""By worker: prompt tokens looked up and found since its engine started."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Prompt tokens a second."""

    saved: float
    """Found in a cache."""
    computed: float


class TokenRates:
    """Samples of the counters of one pool's workers over the last WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Counters]] = deque()

    def note(self, now: float, counters: Counters) -> None:
        """Add a sample; ``now`` in seconds on any clock."""
        self._samples.append((now, counters))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()

    def rates(self) -> Rates | None:
        """The rates between the first and the last sample; None before there are two.

        An engine that has started anew counts from 0: it counts for nothing until its old sample is out.
        """
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        span = ended - began
        known = [(first[name], last[name]) for name in last if name in first]
        grown = [(now[0] - was[0], now[1] - was[1]) for was, now in known if now[0] >= was[0] and now[1] >= was[1]]
        queried, found = sum(one for one, _ in grown), sum(one for _, one in grown)
        return Rates(found / span, max(0, queried - found) / span) if span > 0 else None
