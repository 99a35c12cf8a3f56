"""Ends attempts that wait for the first byte of a worker that has stopped answering, so that another one is asked.

An attempt is stalled where its worker is not ready any more and does not say that it only drains, nothing has come of
it to anybody for longer than it usually takes (``answer_latency``), and another worker would take the request now.
Those that have a byte are never touched. Looks every LOOK_SECONDS while any attempt waits, and ends a few at a time,
since each takes room elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from cachefleet_controlplane.gateway.attempts.answer_latency import AnswerLatency, patience
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.gateway.upstream.worker_answer import Opened
from cachefleet_runtime.lru import LruMap

LOOK_SECONDS: Final = 0.5
ENDED_AT_ONCE: Final = 8
"""Attempts ended by one look."""
MAX_WORKERS: Final = 4096
"""Workers whose latency is known; beyond, the least recently used is forgotten."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What a worker's answers have shown; whole answers come at their end, streams with their first token."""

    heard: float
    whole: AnswerLatency | None = None
    stream: AnswerLatency | None = None

    def after(self, seconds: float, now: float, *, stream: bool) -> _Known:
        if stream:
            return replace(self, heard=now, stream=AnswerLatency.after(self.stream, seconds))
        return replace(self, heard=now, whole=AnswerLatency.after(self.whole, seconds))


@dataclass(slots=True, eq=False)
class Waiting:
    """An attempt that has no byte yet; ``predicted`` gives the seconds that its decision predicted."""

    worker: str
    stream: bool
    predicted: Callable[[], float]
    elsewhere: Callable[[], bool]
    """Whether another worker would take the request now."""


class StalledAttempts:
    """All attempts of a gateway that wait; ``gone`` tells whether a worker, by full name, is not ready nor drains."""

    def __init__(self, gone: Callable[[str], bool], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gone = gone
        self._clock = clock
        self._known: LruMap[str, _Known] = LruMap(MAX_WORKERS)
        self._waiting: dict[Waiting, tuple[float, asyncio.Timeout]] = {}
        self._look_again: asyncio.TimerHandle | None = None

    async def bounded(self, attempt: Waiting, work: Awaitable[Opened]) -> Opened:
        """Return what comes of ``work``; STALLED where it was cancelled, which disconnects it."""
        began, limit = self._clock(), asyncio.timeout(None)
        try:
            async with limit:
                self._waiting[attempt] = began, limit
                self._schedule()
                opened = await work
        except TimeoutError:
            if not limit.expired():
                raise
            return Opened(Outcome.STALLED)
        finally:
            self._waiting.pop(attempt, None)
        if opened.succeeded:
            self._learn(attempt, self._clock() - began)
        return opened

    def _learn(self, attempt: Waiting, seconds: float) -> None:
        now = self._clock()
        known = self._known.use(attempt.worker) or _Known(now)
        self._known.put(attempt.worker, known.after(seconds, now, stream=attempt.stream))

    def _schedule(self) -> None:
        if self._look_again is None:
            self._look_again = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._look_again = None
        if not self._waiting:
            return
        ended = 0
        for attempt, limit in list(self._overdue()):
            if ended < ENDED_AT_ONCE and attempt.elsewhere():
                limit.reschedule(asyncio.get_running_loop().time())
                ended += 1
        self._schedule()

    def _overdue(self) -> Iterator[tuple[Waiting, asyncio.Timeout]]:
        now = self._clock()
        gone = {worker: self._gone(worker) for worker in {attempt.worker for attempt in self._waiting}}
        for attempt, (began, limit) in self._waiting.items():
            if gone[attempt.worker] and not limit.expired() and self._late(attempt, now, began):
                yield attempt, limit

    def _late(self, attempt: Waiting, now: float, began: float) -> bool:
        known = self._known.get(attempt.worker)
        latency = (known.stream if attempt.stream else known.whole) if known else None
        silent = now - max(began, known.heard if known else began)
        return silent >= patience(latency, predicted=attempt.predicted())
