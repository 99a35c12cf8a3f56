"""Retry-After by the rate at which requests of a fleet end. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

WINDOW_SECONDS: Final = 30.0
LEAST_WATCHED_SECONDS: Final = 5.0
"""Busy time after which the rate is taken to be known."""
BUCKET_SECONDS: Final = 1.0
"""Requests that end within one bucket are counted together."""
LEAST_RETRY_SECONDS: Final = 1
MOST_RETRY_SECONDS: Final = 60


class ServiceRate:
    """Service rate of one fleet: blocks of requests that ended within the last WINDOW_SECONDS in which it was busy.

    Time in which no request was in flight does not pass here: it says nothing of how fast requests end.
    """

    def __init__(self) -> None:
        self._open = 0
        self._seen = 0.0
        self._busy = 0.0
        """Seconds, up to ``_seen``, with a request in flight."""
        self._buckets: deque[tuple[float, int]] = deque()

    def began(self, now: float) -> None:
        """Count a request that is in flight from now on."""
        self._pass(now)
        self._open += 1

    def ended(self, blocks: int, now: float) -> None:
        """Count the blocks of a request that has ended; one of unknown size counts as one block."""
        self._pass(now)
        self._open = max(0, self._open - 1)
        blocks = max(1, blocks)
        if self._buckets and self._busy - self._buckets[-1][0] < BUCKET_SECONDS:
            began, counted = self._buckets.pop()
            self._buckets.append((began, counted + blocks))
        else:
            self._buckets.append((self._busy, blocks))
        self._forget()

    def rate(self, now: float) -> float | None:
        """Return blocks a second; None where it was busy for too short a time to tell, or nothing ended."""
        self._pass(now)
        self._forget()
        ended = sum(blocks for _, blocks in self._buckets)
        return ended / min(WINDOW_SECONDS, self._busy) if ended and self._busy >= LEAST_WATCHED_SECONDS else None

    def retry_after(self, wanted: int, now: float) -> int:
        """Return whole seconds until so many blocks will have ended: ``ceil(wanted * seconds / ended)``, from 1 to 60.

        ``seconds`` is the window, or the busy time so far, at least 1. Where nothing ended the result is the window.
        """
        self._pass(now)
        self._forget()
        ended = sum(blocks for _, blocks in self._buckets)
        watched = min(WINDOW_SECONDS, max(BUCKET_SECONDS, self._busy))
        seconds = max(1, wanted) * watched / ended if ended else WINDOW_SECONDS
        return min(MOST_RETRY_SECONDS, max(LEAST_RETRY_SECONDS, math.ceil(seconds)))

    def _pass(self, now: float) -> None:
        if self._open:
            self._busy += max(0.0, now - self._seen)
        self._seen = now

    def _forget(self) -> None:
        while self._buckets and self._busy - self._buckets[0][0] >= WINDOW_SECONDS:
            self._buckets.popleft()
