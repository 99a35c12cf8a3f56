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

from cachefleet_core.report_frames import Prefix, Warm, Warmth
from cachefleet_runtime.backoff import backoff

FAILED_SHOWN: Final = 64


class Progress(Enum):
    """Progress of one prompt."""

    WAITING = auto()
    CACHED = auto()
    FAILED = auto()
    """The last attempt failed; a later one may succeed."""
    REFUSED = auto()
    """The engine refused the prompt itself."""


@dataclass(slots=True)
class Job:
    """One prompt under one salt; ``standing`` is True for a standing one."""

    prefix: Prefix
    standing: bool
    progress: Progress = Progress.WAITING
    attempts: int = 0
    due: float = 0.0
    """When to try next, on the caller's clock."""


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
        """Counts of cached and of all prompts, and the names of failed ones (at most FAILED_SHOWN)."""
        failed = [job.prefix.name for job in self._jobs if job.progress in (Progress.FAILED, Progress.REFUSED)]
        return Warmth(
            done=sum(job.progress is Progress.CACHED for job in self._jobs),
            total=len(self._jobs) + len(self._beyond),
            failed=tuple(dict.fromkeys(failed + self._beyond))[:FAILED_SHOWN],
        )

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

    def finished(self, job: Job, progress: Progress, now: float) -> None:
        """Record an attempt's result, and when to try again."""
        job.progress = progress
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
