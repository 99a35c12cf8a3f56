"""Ends attempts that wait for the first byte of a worker that has stopped answering, so that another one is asked.

An attempt is stalled where its worker is not ready any more and does not say that it only drains, nothing has come of
it to anybody for longer than it usually takes (``answer_latency``), and another worker would take the request now.
Those that have a byte are never touched. Looks every LOOK_SECONDS while any attempt waits, asks for a few at a time
whether another worker would take them, since that is a decision each, and ends fewer, since each takes room elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.gateway.attempts.answer_latency import LEAST_SECONDS, AnswerLatency, patience
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.gateway.upstream.worker_answer import Opened
from cachefleet_runtime.lru import LruMap

LOOK_SECONDS: Final = 0.5
ENDED_AT_ONCE: Final = 8
"""Attempts ended by one look."""
ASKED_AT_ONCE: Final = 32
"""Attempts for which one look asks whether another worker would take them; the others' turn comes next."""
MAX_WORKERS: Final = 4096
"""Workers whose latency is known; beyond, the least recently used is forgotten."""


@dataclass(slots=True)
class _Known:
    """What a worker's answers have shown; whole answers come at their end, streams with their first token."""

    heard: float
    whole: AnswerLatency | None = None
    stream: AnswerLatency | None = None

    def learn(self, seconds: float, *, stream: bool) -> None:
        if stream:
            self.stream = AnswerLatency.after(self.stream, seconds)
        else:
            self.whole = AnswerLatency.after(self.whole, seconds)


@dataclass(slots=True, eq=False)
class Waiting:
    """An attempt that has no byte yet; ``predicted`` gives the seconds that its decision predicted."""

    worker: str
    stream: bool
    predicted: Callable[[], float]
    elsewhere: Callable[[], bool]
    """Whether another worker would take the request now."""
    began: float = 0.0
    task: asyncio.Task[Any] | None = None
    """What waits; None before it does."""
    ended: bool = False
    """It was cancelled as stalled."""

    def end(self) -> None:
        """Cancel what waits, once."""
        if self.task is not None and not self.ended:
            self.ended = True
            self.task.cancel()


Gone = Callable[[AbstractSet[str]], AbstractSet[str]]
"""Those of some workers, by full names, that are not ready nor drain."""


class StalledAttempts:
    """All attempts of a gateway that wait."""

    def __init__(self, gone: Gone, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gone = gone
        self._clock = clock
        self._known: LruMap[str, _Known] = LruMap(MAX_WORKERS)
        self._waiting: dict[Waiting, None] = {}
        self._asked: dict[str, dict[object, Callable[[], float]]] = {}
        """How long nothing has come of each worker whose answers native code relays, one for each answer."""
        self._look_again: asyncio.TimerHandle | None = None

    async def bounded(self, attempt: Waiting, work: Awaitable[Opened]) -> Opened:
        """Return what comes of ``work``; STALLED where it was cancelled, which disconnects it."""
        task = attempt.task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        attempt.began = self._clock()
        self._waiting[attempt] = None
        self._schedule()
        try:
            opened = await work
        except asyncio.CancelledError:
            # It ends the attempt where nobody else has cancelled the task.
            if task is None or not attempt.ended or task.uncancel() > before:
                raise
            return Opened(Outcome.STALLED)
        finally:
            self._waiting.pop(attempt, None)
        if task is not None and attempt.ended:  # its answer came in the same moment
            task.uncancel()
        if opened.succeeded:
            self._heard(attempt.worker).learn(self._clock() - attempt.began, stream=attempt.stream)
        return opened

    @contextmanager
    def listening(self, worker: str, silent_seconds: Callable[[], float]) -> Iterator[None]:
        """Ask ``silent_seconds`` meanwhile how long nothing has come of a worker, by full name."""
        asked = self._asked.setdefault(worker, {})
        asked[key := object()] = silent_seconds
        try:
            yield
        finally:
            del asked[key]
            if not asked:
                self._asked.pop(worker, None)

    def heard(self, worker: str) -> None:
        """Note that something came of a worker, by full name: the next events of an answer that has begun."""
        self._heard(worker)

    def _heard(self, worker: str) -> _Known:
        now = self._clock()
        known = self._known.use(worker)
        if known is None:
            self._known.put(worker, known := _Known(now))
        known.heard = now
        return known

    def _schedule(self) -> None:
        if self._look_again is None:
            self._look_again = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._look_again = None
        if not self._waiting:
            return
        ended = 0
        for attempt in self._overdue()[:ASKED_AT_ONCE]:
            del self._waiting[attempt]
            self._waiting[attempt] = None  # behind those that were not asked for
            if ended < ENDED_AT_ONCE and attempt.elsewhere():
                attempt.end()
                ended += 1
        self._schedule()

    def _overdue(self) -> list[Waiting]:
        now = self._clock()
        workers = {attempt.worker for attempt in self._waiting}
        relayed = {worker: now - self._unheard(worker) for worker in workers & self._asked.keys()}
        silent = {one: self._silence(one, now, relayed.get(one.worker, one.began)) for one in self._waiting}
        silent = {attempt: seconds for attempt, seconds in silent.items() if seconds >= LEAST_SECONDS}
        gone = self._gone({attempt.worker for attempt in silent}) if silent else frozenset()
        return [one for one, seconds in silent.items() if one.worker in gone and seconds >= self._patience(one)]

    def _unheard(self, worker: str) -> float:
        return min((seconds() for seconds in self._asked[worker].values()), default=math.inf)

    def _silence(self, attempt: Waiting, now: float, relayed: float) -> float:
        """Seconds since anything came of its worker, which was ``relayed`` last; 0 where it is being ended."""
        known = self._known.get(attempt.worker)
        return 0.0 if attempt.ended else now - max(attempt.began, relayed, known.heard if known else attempt.began)

    def _patience(self, attempt: Waiting) -> float:
        known = self._known.get(attempt.worker)
        latency = (known.stream if attempt.stream else known.whole) if known else None
        return patience(latency, predicted=attempt.predicted())
