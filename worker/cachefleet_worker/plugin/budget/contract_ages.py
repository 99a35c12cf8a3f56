"""When idle blocks of an owner with a contract were last used, and which are past its retention: pure."""

from __future__ import annotations

from collections import deque
from typing import Final

ENDLESS: Final = 0
"""A retention of this many seconds never ends."""
_GRAIN: Final = 256
"""Blocks are held longer than their retention by up to this part of it; as many spans are remembered."""


class ContractAges:
    """Times of use by the numbers of chains (``Ranking``), in spans of at most a part of the retention each."""

    __slots__ = ("_spans", "over", "retention")

    def __init__(self, retention: int) -> None:
        self.retention = retention
        self.over = 0
        """The greatest number whose retention was over at the last ``lapse``; 0 before any."""
        self._spans: deque[tuple[float, float, int]] = deque()
        """First and last time, and last number."""

    def add(self, number: int, now: float) -> None:
        """A chain was freed with this number, greater than those before."""
        if self.retention == ENDLESS:
            return
        began = now
        if self._spans and now - self._spans[-1][0] < self.retention / _GRAIN:
            began = self._spans.pop()[0]
        self._spans.append((began, now, number))

    def lapse(self, now: float) -> int:
        """The greatest number whose retention is over by now; 0 for none."""
        while self._spans and self._spans[0][1] + self.retention <= now:
            self.over = self._spans.popleft()[2]
        return self.over
