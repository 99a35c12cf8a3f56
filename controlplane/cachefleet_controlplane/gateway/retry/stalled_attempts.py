"""Ends the wait for answers of workers that the fleet knows not to answer, so that another one is asked.

Three rules, by what the fleet knows of a worker (``worker_troubles``) and how long nothing has come of it:

- Its engine has ended, or worker and agent are gone, and nothing has come since, or for STREAM_SECONDS: its attempts
  end. Answers that have begun break off, and are resumed elsewhere where they can be.
- It is not ready and does not say that it only drains, or its engine serves nothing: where another worker would take
  the request now, an attempt moves there. One without a byte does once the worker is silent for longer than it usually
  takes (``answer_latency``), one that has begun once it can be resumed and is silent for STREAM_SECONDS.
- Its engine serves nothing, and no other worker takes the request: the attempt ends after SUSPENDED_SECONDS.

And one for workers that drain: what has begun goes on for a while, and then on another worker that would take it now,
where it can be resumed. Nothing is broken off for that: the relay looks between two events, and hands over.

Looks every LOOK_SECONDS while any attempt is under way. Of those that could move it asks for a few at a time whether
another worker would take them, since that is a decision each, and moves fewer, since each takes room elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cachefleet_controlplane.fleet.worker_troubles import Trouble
from cachefleet_controlplane.gateway.retry.answer_latency import AnswerLatency, Limits, limits, patience
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_runtime.lru import LruMap

LOOK_SECONDS: Final = 0.5
ENDED_AT_ONCE: Final = 8
"""Attempts ended, and answers of workers that drain moved, by one look."""
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
class UnansweredAttempt:
    """An attempt that has no byte yet; ``predicted`` are the seconds that its decision predicted."""

    worker: str
    stream: bool
    predicted: float
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


@dataclass(slots=True, eq=False)
class Relaying:
    """An answer that has begun; ``cut`` has it break off for whoever reads it."""

    worker: str
    cut: Callable[[], None]
    elsewhere: Callable[[], bool]
    """Whether another worker could go on with it now."""
    pause: Callable[[], None]
    """Has its relay look whether it ``leaves``."""
    movable: Callable[[], bool]
    """Whether another worker would go on with it now, if what has come of it allows."""
    heard: float = 0.0
    """When something came of it last."""
    silent_seconds: Callable[[], float] | None = None
    """How long nothing has come, while native code relays it."""
    ended: bool = False
    """It was cut."""
    leaves: bool = False
    """Its worker drains, and another one is to go on with it."""

    def leave(self) -> None:
        """Have its relay hand it over between two events, once."""
        if not self.leaves:
            self.leaves = True
            self.pause()

    def end(self) -> None:
        """Cut it, once."""
        if not self.ended:
            self.ended = True
            self.cut()

    def silence(self, now: float) -> float:
        """Seconds since something came of it."""
        return now - self.heard if self.silent_seconds is None else self.silent_seconds()


Troubles = Callable[[AbstractSet[str]], Mapping[str, Trouble]]
"""Those of some workers, by full names, whose answers may never come."""
_Attempt = UnansweredAttempt | Relaying
_Movable = TypeVar("_Movable", bound=UnansweredAttempt | Relaying)


class StalledAttempts:
    """All attempts of a gateway that are under way."""

    def __init__(self, troubles: Troubles, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._troubles = troubles
        self._clock = clock
        self._known: LruMap[str, _Known] = LruMap(MAX_WORKERS)
        self._waiting: dict[UnansweredAttempt, None] = {}
        self._relayed: defaultdict[str, dict[Relaying, None]] = defaultdict(dict)
        """Answers that have begun, by worker."""
        self._look_again: asyncio.TimerHandle | None = None

    async def bounded(self, attempt: UnansweredAttempt, work: Awaitable[AttemptResult]) -> AttemptResult:
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
            return AttemptResult(Outcome.STALLED)
        finally:
            self._waiting.pop(attempt, None)
        if task is not None and attempt.ended:  # its answer came in the same moment
            task.uncancel()
        if opened.succeeded:
            self._heard(attempt.worker).learn(self._clock() - attempt.began, stream=attempt.stream)
        return opened

    @contextmanager
    def relaying(self, answer: Relaying) -> Iterator[None]:
        """Watch an answer that has begun, meanwhile."""
        answer.heard = self._clock()
        self._relayed[answer.worker][answer] = None
        self._schedule()
        try:
            yield
        finally:
            del self._relayed[answer.worker][answer]
            if not self._relayed[answer.worker]:
                del self._relayed[answer.worker]

    def heard(self, answer: Relaying) -> None:
        """Note that something came of an answer that has begun."""
        answer.heard = self._heard(answer.worker).heard

    def relayed(self, answer: Relaying) -> None:
        """Note that native code does not relay an answer any more: it has told what came of it."""
        answer.heard, answer.silent_seconds = self._clock() - answer.silence(self._clock()), None

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
        if not self._waiting and not self._relayed:
            return
        troubles = self._troubles({attempt.worker for attempt in self._waiting} | self._relayed.keys())
        if troubles:
            self._judge(troubles, self._clock())
        self._schedule()

    def _judge(self, troubles: Mapping[str, Trouble], now: float) -> None:
        """End what waits in vain; move what others would take, a few at a time."""
        movable, leaving = list[_Attempt](), list[Relaying]()
        for attempt, silence in self._silences(troubles, now):
            trouble = troubles[attempt.worker]
            if trouble.moves_at is not None:
                if isinstance(attempt, Relaying) and not attempt.leaves and now >= trouble.moves_at:
                    leaving.append(attempt)
                continue
            bound = self._limits(attempt, trouble)
            dead = trouble.dead_since is not None and silence >= now - trouble.dead_since
            if dead or silence >= bound.end:
                attempt.end()
            elif silence >= bound.move:
                movable.append(attempt)
        self._move(movable, lambda attempt: attempt.elsewhere(), lambda attempt: attempt.end())
        self._move(leaving, lambda answer: answer.movable(), lambda answer: answer.leave())

    def _move(
        self, attempts: Sequence[_Movable], others_take: Callable[[_Movable], bool], move: Callable[[_Movable], None]
    ) -> None:
        moved = 0
        for attempt in attempts[:ASKED_AT_ONCE]:
            self._behind_others(attempt)
            if moved < ENDED_AT_ONCE and others_take(attempt):
                move(attempt)
                moved += 1

    def _behind_others(self, attempt: _Attempt) -> None:
        """Those that were not asked for come first at the next look."""
        if isinstance(attempt, UnansweredAttempt):
            del self._waiting[attempt]
            self._waiting[attempt] = None
        else:
            answers = self._relayed[attempt.worker]
            del answers[attempt]
            answers[attempt] = None

    def _silences(self, troubles: Mapping[str, Trouble], now: float) -> list[tuple[_Attempt, float]]:
        """The attempts of workers in trouble that were not ended, and for how long nothing has come."""
        relayed = {worker: self._last_relayed(worker, now) for worker in troubles}
        waiting = [one for one in self._waiting if one.worker in troubles and not one.ended]
        begun = [one for worker in troubles for one in self._relayed.get(worker, ()) if not one.ended]
        silent = [(one, self._silence(one, now, relayed[one.worker])) for one in waiting]
        return [*silent, *((one, one.silence(now)) for one in begun)]

    def _last_relayed(self, worker: str, now: float) -> float:
        """When something came of any answer of a worker that native code relays."""
        answers = self._relayed.get(worker, ())
        return now - min((one.silent_seconds() for one in answers if one.silent_seconds), default=math.inf)

    def _silence(self, attempt: UnansweredAttempt, now: float, relayed: float) -> float:
        """Seconds since anything came of its worker, which was ``relayed`` last."""
        known = self._known.get(attempt.worker)
        return now - max(attempt.began, relayed, known.heard if known else attempt.began)

    def _limits(self, attempt: _Attempt, trouble: Trouble) -> Limits:
        if isinstance(attempt, Relaying):
            return limits(trouble, 0.0, begun=True)
        known = self._known.get(attempt.worker)
        latency = (known.stream if attempt.stream else known.whole) if known else None
        return limits(trouble, patience(latency, predicted=attempt.predicted), begun=False)
