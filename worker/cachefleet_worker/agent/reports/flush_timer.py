"""When to report changes of the held blocks: soon after the first, and seldom while few of them are removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

FRAME_SECONDS: Final = 0.1
"""From one report of changes to the next, at least, while they keep coming."""
MOST_REMOVED: Final = 1 / 256
"""Share of the held blocks whose removal may wait for that: at such a pace all are removed within 26 s."""
SOONEST_SECONDS: Final = 0.002
"""From one report to the next, at least, where the removal of more is to be told."""


class FlushTimer:
    """Calls ``flush`` ``delta_seconds`` after a change, but not sooner than FRAME_SECONDS after the last flush.

    A frame costs a control plane more than the blocks in it, and an engine changes blocks at each of its steps. But a
    decision counts on blocks until their removal is told: where more than MOST_REMOVED of those held are removed
    (``removed`` gives the share that no report tells of yet), the flush comes at once, but not sooner than
    SOONEST_SECONDS after the last one.
    """

    def __init__(self, flush: Callable[[], None], *, delta_seconds: float, removed: Callable[[], float]) -> None:
        self._flush = flush
        self._delta_seconds = delta_seconds
        self._removed = removed
        self.flushed_at = float("-inf")
        """The time of the last flush, on the loop's clock."""
        self._due: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """The held blocks have changed: a flush is due."""
        loop = asyncio.get_running_loop()
        at = self.due(loop.time())
        if self._due is not None:
            if self._due.when() <= at:
                return
            self._due.cancel()
        self._due = loop.call_at(at, self.flush_now)

    def due(self, now: float) -> float:
        """When to flush what has changed until ``now``; both on the loop's clock."""
        if self._removed() > MOST_REMOVED:
            return max(now, self.flushed_at + SOONEST_SECONDS)
        return max(now + self._delta_seconds, self.flushed_at + FRAME_SECONDS)

    def flush_now(self) -> None:
        """Flush, in place of the flush that is due."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self.flushed_at = asyncio.get_running_loop().time()
        self._flush()
