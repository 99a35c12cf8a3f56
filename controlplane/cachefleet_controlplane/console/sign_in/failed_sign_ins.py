"""Sign-ins that failed lately, by the address they came from: each costs a look at who the token's bearer is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from cachefleet_runtime.lru import LruMap

MOST_FAILURES: Final = 20
"""Within WINDOW_SECONDS, from one address."""
WINDOW_SECONDS: Final = 60.0
MAX_ADDRESSES: Final = 1024
"""Addresses that are remembered; beyond, the one that failed longest ago is forgotten."""


class FailedSignIns:
    """Counts failures; ``clock`` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: LruMap[str, tuple[int, float]] = LruMap(MAX_ADDRESSES)
        """How many, and when the first of them was."""

    def add(self, address: str) -> None:
        """A sign-in from this address has failed."""
        count, since = self._of(address)
        self._failed.put(address, (count + 1, since))

    def wait_seconds(self, address: str) -> int:
        """For how long nothing from this address is checked; 0 where it may try."""
        count, since = self._of(address)
        return math.ceil(since + WINDOW_SECONDS - self._clock()) if count >= MOST_FAILURES else 0

    def _of(self, address: str) -> tuple[int, float]:
        now = self._clock()
        count, since = self._failed.get(address, (0, now))
        return (count, since) if now - since < WINDOW_SECONDS else (0, now)
