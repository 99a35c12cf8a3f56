"""How many lines of a batch may be under way at once: more while answers come, fewer once there was no room. Pure.

Additive increase, multiplicative decrease (Chiu and Jain, 1989): batches of several replicas share what is spare.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 2.0
"""Lines at the beginning."""


class SpareRoom:
    """Of one batch: at most ``most`` lines. Times are in seconds."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._lines = min(FIRST, float(self._most))
        self._closed_until = 0.0

    @property
    def lines(self) -> int:
        """How many may be under way."""
        return int(self._lines)

    def open(self, now: float) -> bool:
        """Whether another line may begin at all."""
        return now >= self._closed_until

    def answered(self) -> None:
        """A line was answered: one more after as many as are under way."""
        self._lines = min(float(self._most), self._lines + 1 / self._lines)

    def refused(self, now: float, *, seconds: float) -> None:
        """There was no room: half as many, but once for all refused then, and none before so many seconds are over."""
        if self.open(now):
            self._lines = max(1.0, self._lines / 2)
        self._closed_until = max(self._closed_until, now + seconds)
