"""The prompts to cache, and the progress of each: pure.

A pool's prompts are standing: they are cached again in each epoch and after each clear, and retried after failures,
until the pool drops them. Other prompts are tried once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import msgspec

from cachefleet_core.report_frames import Warm
from cachefleet_core.warmth import FAILING, REFUSED, TOO_LONG, Prefix, WarmProblem, Warmth
from cachefleet_runtime.backoff import backoff

FAILED_SHOWN: Final = 64
PROBLEMS_SHOWN: Final = 8
FAILING_ATTEMPTS: Final = 3
"""Failures in a row after which a prompt is told of as one that fails again and again."""


class Progress(Enum):
    """Progress of one prompt."""

    WAITING = auto()
    CACHED = auto()
    FAILED = auto()
    """The last attempt failed; a later one may succeed."""
    REFUSED = auto()
    """The engine refused the prompt itself."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one attempt at a prompt ended; ``tokens`` is its length where that is known, ``error`` no content of it."""

    progress: Progress
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """Most tokens that a prompt may have to be served, and to stay cached; None where that is not known."""

    served: int | None = None
    kept: int | None = None

    def excess(self, tokens: int) -> tuple[int, str] | None:
        """The bound that a prompt is beyond, and the pool's field that sets it; None where it fits."""
        bounds = ((self.served, "engine.maxModelLen"), (self.kept, "prefixCache.budgetMiB"))
        return next(((bound, field) for bound, field in bounds if bound is not None and tokens > bound), None)


@dataclass(slots=True)
class Job:
    """One prompt under one salt; ``standing`` is True for a standing one."""

    prefix: Prefix
    standing: bool
    progress: Progress = Progress.WAITING
    attempts: int = 0
    due: float = 0.0
    """When to try next, on the caller's clock."""
    tokens: int = 0
    """Its length; 0 while unknown."""
    error: str = ""
    """Of the last attempt."""

    def problem(self, room: Room) -> WarmProblem | None:
        """Why waiting will not have it cached, None where it may."""
        name, attempts = self.prefix.name, self.attempts
        if self.progress in (Progress.CACHED, Progress.REFUSED) and (excess := room.excess(self.tokens)):
            limit, field = excess
            return WarmProblem(name=name, kind=TOO_LONG, tokens=self.tokens, limit=limit, detail=field)
        if self.progress is Progress.REFUSED:
            return WarmProblem(name=name, kind=REFUSED, attempts=attempts, detail=self.error)
        if self.progress is Progress.FAILED and attempts >= FAILING_ATTEMPTS:
            return WarmProblem(name=name, kind=FAILING, attempts=attempts, detail=self.error)
        return None

    def held(self, room: Room) -> bool:
        """Whether it was cached and fits."""
        return self.progress is Progress.CACHED and room.excess(self.tokens) is None


class Prefixes:
    """The prompts of the present epoch; at most ``limit``, those beyond it count as failed.

    Seconds between attempts double from ``retry_base`` to ``retry_cap``.
    """

    def __init__(self, *, limit: int, retry_base: float, retry_cap: float) -> None:
        self._limit = limit
        self._retry_base = retry_base
        self._retry_cap = retry_cap
        self._jobs: list[Job] = []
        self._beyond: list[str] = []
        self._standing: Warm | None = None
        self._resting = False
        self._room = Room()

    @property
    def named(self) -> bool:
        """Whether the pool's prompts are known, even if there are none."""
        return self._standing is not None

    @property
    def pending(self) -> bool:
        """Whether a prompt is still to be tried, refused ones excepted."""
        return any(self._open(job) and job.progress is not Progress.REFUSED for job in self._jobs)

    @property
    def warmth(self) -> Warmth:
        """Counts of cached and of all prompts, the names of failed ones, and why the pool's own are not cached."""
        tried = [job for job in self._jobs if job.progress is not Progress.WAITING]
        failed = [job.prefix.name for job in tried if not job.held(self._room)]
        return Warmth(
            done=sum(job.held(self._room) for job in self._jobs),
            total=len(self._jobs) + len(self._beyond),
            failed=tuple(dict.fromkeys(failed + self._beyond))[:FAILED_SHOWN],
            problems=tuple(self._problems())[:PROBLEMS_SHOWN],
        )

    def _problems(self) -> list[WarmProblem]:
        """One for each prefix, whatever the number of its salts."""
        found = [problem for job in self._jobs if job.standing and (problem := job.problem(self._room))]
        words = f"a worker caches {self._limit} prompts, each prefix once for each of its tenants"
        found += [WarmProblem(name=name, kind=REFUSED, detail=words) for name in self._beyond]
        return list({problem.name: problem for problem in reversed(found)}.values())[::-1]

    def bound(self, room: Room) -> None:
        """Take ``room`` as the bound from now on; what fits only now is cached again."""
        before, self._room = self._room, room
        for job in self._jobs:
            if job.standing and job.progress is Progress.CACHED and not job.held(before) and job.held(room):
                job.progress, job.attempts, job.due = Progress.WAITING, 0, 0.0

    def begin(self) -> None:
        """Begin an epoch: nothing is cached, prompts that are not standing are dropped."""
        self._resting = False
        self._jobs = [job for job in self._jobs if job.standing]
        self._beyond = []
        self.again()

    def rest(self) -> None:
        """Try nothing more in this epoch."""
        self._resting = True

    def again(self) -> None:
        """The cache was cleared: try all standing prompts again."""
        for job in self._jobs:
            if job.standing:
                job.progress, job.attempts, job.due = Progress.WAITING, 0, 0.0

    def stand(self, warm: Warm) -> bool:
        """Replace the standing prompts; returns False, nothing changed, where ``warm`` is older."""
        known = self._standing
        if known is not None and known.uid == warm.uid and known.generation > warm.generation:
            return False
        self._standing = warm
        before = {_identity(job.prefix): job for job in self._jobs if job.standing}
        others = [job for job in self._jobs if not job.standing]
        wanted = {_identity(prefix): prefix for prefix in _expanded(warm.prefixes)}
        self._jobs, self._beyond = others, []
        for identity, prefix in wanted.items():
            self._add(before.get(identity) or Job(prefix, standing=True))
        return True

    def once(self, prefixes: Iterable[Prefix]) -> None:
        """Add prompts that are tried once, in this epoch."""
        for prefix in _expanded(prefixes):
            self._add(Job(prefix, standing=False))

    def next(self, now: float) -> Job | None:
        """The job to try now; None where none is due."""
        due = (job for job in self._jobs if self._open(job) and job.due <= now)
        return None if self._resting else min(due, key=lambda job: job.due, default=None)

    def next_due(self) -> float | None:
        """When the next job is due; None where none is left."""
        due = (job.due for job in self._jobs if self._open(job))
        return None if self._resting else min(due, default=None)

    def finished(self, job: Job, result: Result, now: float) -> None:
        """Record an attempt's result, and when to try again."""
        progress = job.progress = result.progress
        job.tokens, job.error = result.tokens or job.tokens, result.error
        job.attempts += 1
        wait = backoff(job.attempts, first=self._retry_base, longest=self._retry_cap)
        job.due = now + (self._retry_cap if progress is Progress.REFUSED else wait)

    @staticmethod
    def _open(job: Job) -> bool:
        if job.standing:
            return job.progress is not Progress.CACHED
        return job.progress is Progress.WAITING

    def _add(self, job: Job) -> None:
        if len(self._jobs) >= self._limit:
            self._beyond.append(job.prefix.name)
        else:
            self._jobs.append(job)


def _expanded(prefixes: Iterable[Prefix]) -> Iterator[Prefix]:
    """Each prompt once for each of its salts."""
    for prefix in prefixes:
        if not prefix.salts:
            yield prefix
        for salt in dict.fromkeys(prefix.salts):
            yield msgspec.structs.replace(prefix, salt=salt, salts=())


def _identity(prefix: Prefix) -> tuple[object, ...]:
    return (prefix.name, prefix.messages, prefix.ids, prefix.salt, prefix.lora)


@dataclass(slots=True)
class Gate:
    """Whether readiness waits for warm prefixes: only at the start of an epoch, with a timeout."""

    over: bool = False
    late: bool = False
    """Opened by the timeout, with prompts still pending."""
    since: float = 0.0

    def begin(self, now: float) -> None:
        """Close the gate at the start of an epoch."""
        self.over = self.late = False
        self.since = now

    def update(self, now: float, *, outstanding: bool, timeout: float) -> bool:
        """Whether readiness still waits; ``timeout`` in seconds from the start of the epoch."""
        if not self.over:
            self.late = outstanding and now - self.since >= timeout
            self.over = self.late or not outstanding
        elif not outstanding:
            self.late = False
        return not self.over
