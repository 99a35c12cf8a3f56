"""How fast a fleet gets done with requests, and so when one that was refused may come again. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

WINDOW_SECONDS: Final = 30.0
BUCKET_SECONDS: Final = 1.0
"""What ended within one is counted together."""
LEAST_RETRY_SECONDS: Final = 1
MOST_RETRY_SECONDS: Final = 60


class Drain:
    """Blocks of requests that ended within the last WINDOW_SECONDS."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._buckets: deque[tuple[float, int]] = deque()

    def add(self, blocks: int, now: float) -> None:
        """A request that needed so many blocks has ended; one of unknown size counts as one block."""
        blocks = max(1, blocks)
        if self._buckets and now - self._buckets[-1][0] < BUCKET_SECONDS:
            began, counted = self._buckets.pop()
            self._buckets.append((began, counted + blocks))
        else:
            self._buckets.append((now, blocks))
        self._forget(now)

    def retry_after(self, wanted: int, now: float) -> int:
        """Whole seconds until so many blocks will have ended: ``ceil(wanted * seconds / ended)``, from 1 to 60.

        ``seconds`` is the window, or how long it is watched, at least one. Where nothing ended it is the window.
        """
        self._forget(now)
        ended = sum(blocks for _, blocks in self._buckets)
        watched = min(WINDOW_SECONDS, max(BUCKET_SECONDS, now - self._since))
        seconds = max(1, wanted) * watched / ended if ended else WINDOW_SECONDS
        return min(MOST_RETRY_SECONDS, max(LEAST_RETRY_SECONDS, math.ceil(seconds)))

    def _forget(self, now: float) -> None:
        while self._buckets and now - self._buckets[0][0] >= WINDOW_SECONDS:
            self._buckets.popleft()
