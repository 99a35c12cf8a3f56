"""Work queue of keys to reconcile: no duplicates, one worker per key, back-off after failures.

Bounded by the number of pools: a key is waiting, being worked on (and perhaps marked for another pass or due later),
or due at one time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

from cachefleet_runtime.backoff import backoff

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """A queue for one event loop. ``first`` and ``longest`` bound the pause after failures, in seconds."""

    def __init__(self, *, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._waiting: dict[K, None] = {}  # in order of arrival
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._due: dict[K, asyncio.TimerHandle] = {}
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Queue ``key`` now; while it is being worked on, for once after that."""
        self._cancel(key)
        if key in self._working:
            self._again.add(key)
        else:
            self._waiting[key] = None
            self._arrived.set()

    def add_later(self, key: K, seconds: float) -> None:
        """Queue ``key`` after ``seconds``, unless it is queued or due before that."""
        loop = asyncio.get_running_loop()
        due = self._due.get(key)
        if key in self._waiting or key in self._again or (due and due.when() <= loop.time() + seconds):
            return
        self._cancel(key)
        self._due[key] = loop.call_later(seconds, self.add, key)

    async def get(self) -> K:
        """Wait for the next key. The caller must end work on it with ``done``."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._working.add(key)
        return key

    def done(self, key: K, *, failed: bool) -> None:
        """End work on ``key``; a failed one is queued again after a pause that doubles with each failure."""
        self._working.discard(key)
        self._failures[key] = self._failures.get(key, 0) + 1 if failed else 0
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        elif failed:
            self._cancel(key)
            self._due[key] = asyncio.get_running_loop().call_later(self.pause(self._failures[key]), self.add, key)
        if not self._failures[key]:
            del self._failures[key]

    def pause(self, failures: int) -> float:
        """Seconds to wait after the given number of failures in a row."""
        return backoff(failures - 1, first=self._first, longest=self._longest)

    def close(self) -> None:
        """Cancel all keys that are due later."""
        for key in tuple(self._due):
            self._cancel(key)

    def _cancel(self, key: K) -> None:
        handle = self._due.pop(key, None)
        if handle is not None:
            handle.cancel()
