"""Which prompts are to be cached, and how far that has come: pure.

Prompts of the pool stand: they are cached again in each epoch and after each clearing, tried again where that failed,
until the pool leaves them out. Others are tried once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import msgspec

from cachefleet_core.reports import Prefix, Warm, Warmth
from cachefleet_runtime.backoff import backoff

FAILED_SHOWN: Final = 64


class Progress(Enum):
    """How far one prompt is."""

    WAITING = auto()
    CACHED = auto()
    FAILED = auto()
    """It may succeed at another time."""
    REFUSED = auto()
    """The engine finds fault with the prompt itself."""


@dataclass(slots=True)
class Job:
    """One prompt under one salt."""

    prefix: Prefix
    worker_state: bool
    progress: Progress = Progress.WAITING
    attempts: int = 0
    due: float = 0.0
    """When to try next, where it stands and is not cached."""


class Prefixes:
    """The prompts of the present epoch; ``limit`` bounds how many, what is beyond it counts as failed.

    Seconds between attempts double from ``retry_base`` to ``retry_cap``.
    """

    def __init__(self, *, limit: int, retry_base: float, retry_cap: float) -> None:
        self._limit = limit
        self._retry_base = retry_base
        self._retry_cap = retry_cap
        self._jobs: list[Job] = []
        self._beyond: list[str] = []
        self._worker_state: Warm | None = None
        self._resting = False

    @property
    def named(self) -> bool:
        """Whether the pool ever said which prompts stand."""
        return self._worker_state is not None

    @property
    def pending(self) -> bool:
        """Whether a prompt is not cached, and may come to be."""
        return any(self._open(job) and job.progress is not Progress.REFUSED for job in self._jobs)

    @property
    def warmth(self) -> Warmth:
        failed = [job.prefix.name for job in self._jobs if job.progress in (Progress.FAILED, Progress.REFUSED)]
        return Warmth(
            done=sum(job.progress is Progress.CACHED for job in self._jobs),
            total=len(self._jobs) + len(self._beyond),
            failed=tuple(dict.fromkeys(failed + self._beyond))[:FAILED_SHOWN],
        )

    def begin(self) -> None:
        """A new epoch: nothing is cached."""
        self._resting = False
        self._jobs = [job for job in self._jobs if job.worker_state]
        self._beyond = []
        self.again()

    def rest(self) -> None:
        """Nothing is to be tried any more in this epoch."""
        self._resting = True

    def again(self) -> None:
        """The cache was cleared."""
        for job in self._jobs:
            if job.worker_state:
                job.progress, job.attempts, job.due = Progress.WAITING, 0, 0.0

    def stand(self, warm: Warm) -> bool:
        """Take over which prompts stand, unless that is older than what is known; whether it was taken over."""
        known = self._worker_state
        if known is not None and known.uid == warm.uid and known.generation > warm.generation:
            return False
        self._worker_state = warm
        before = {_identity(job.prefix): job for job in self._jobs if job.worker_state}
        others = [job for job in self._jobs if not job.worker_state]
        wanted = {_identity(prefix): prefix for prefix in _expanded(warm.prefixes)}
        self._jobs, self._beyond = others, []
        for identity, prefix in wanted.items():
            self._add(before.get(identity) or Job(prefix, worker_state=True))
        return True

    def once(self, prefixes: Iterable[Prefix]) -> None:
        """Try these once, in this epoch."""
        for prefix in _expanded(prefixes):
            self._add(Job(prefix, worker_state=False))

    def next(self, now: float) -> Job | None:
        """What to try now."""
        due = (job for job in self._jobs if self._open(job) and job.due <= now)
        return None if self._resting else min(due, key=lambda job: job.due, default=None)

    def next_due(self) -> float | None:
        """When there will be something to try; None where nothing is left."""
        due = (job.due for job in self._jobs if self._open(job))
        return None if self._resting else min(due, default=None)

    def finished(self, job: Job, progress: Progress, now: float) -> None:
        """An attempt has ended."""
        job.progress = progress
        job.attempts += 1
        wait = backoff(job.attempts, first=self._retry_base, longest=self._retry_cap)
        job.due = now + (self._retry_cap if progress is Progress.REFUSED else wait)

    @staticmethod
    def _open(job: Job) -> bool:
        if job.worker_state:
            return job.progress is not Progress.CACHED
        return job.progress is Progress.WAITING

    def _add(self, job: Job) -> None:
        if len(self._jobs) >= self._limit:
            self._beyond.append(job.prefix.name)
        else:
            self._jobs.append(job)


def _expanded(prefixes: Iterable[Prefix]) -> Iterator[Prefix]:
    """Each prompt under each of its salts by itself."""
    for prefix in prefixes:
        if not prefix.salts:
            yield prefix
        for salt in dict.fromkeys(prefix.salts):
            yield msgspec.structs.replace(prefix, salt=salt, salts=())


def _identity(prefix: Prefix) -> tuple[object, ...]:
    return (prefix.name, prefix.messages, prefix.ids, prefix.salt, prefix.lora)


@dataclass(slots=True)
class Gate:
    """Whether traffic waits for warm prefixes: at the start of an epoch only, and not for ever."""

    over: bool = False
    late: bool = False
    """It was opened by time alone."""
    since: float = 0.0

    def begin(self, now: float) -> None:
        self.over = self.late = False
        self.since = now

    def update(self, now: float, *, outstanding: bool, timeout: float) -> bool:
        """Whether traffic still waits; ``timeout`` in seconds from the start of the epoch."""
        if not self.over:
            self.late = outstanding and now - self.since >= timeout
            self.over = self.late or not outstanding
        elif not outstanding:
            self.late = False
        return not self.over
