"""When to report changes of the held blocks: soon after the first, and seldom while they keep coming."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

FRAME_SECONDS: Final = 0.1
"""From one report of changes to the next, at least, while they keep coming."""


class FlushTimer:
    """Calls ``flush`` ``delta_seconds`` after a change, but not sooner than FRAME_SECONDS after the last flush.

    A frame costs a control plane more than the blocks in it, and an engine changes blocks at each of its steps.
    """

    def __init__(self, flush: Callable[[], None], *, delta_seconds: float) -> None:
        self._flush = flush
        self._delta_seconds = delta_seconds
        self._flushed_at = float("-inf")
        self._due: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """The held blocks have changed: a flush is due."""
        if self._due is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + self._delta_seconds, self._flushed_at + FRAME_SECONDS)
            self._due = loop.call_at(at, self.flush_now)

    def flush_now(self) -> None:
        """Flush, in place of the flush that is due."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._flushed_at = asyncio.get_running_loop().time()
        self._flush()
