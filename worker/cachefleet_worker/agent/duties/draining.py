"""How a worker goes: it takes no new work, what runs may end, and what was sent meanwhile is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SILENT_SECONDS: Final = 30.0
"""After how long without an answer nothing is expected to end any more."""


@dataclass(slots=True)
class Draining:
    """When a drain began, by when it must end, and since when the engine has been idle; times in seconds. Pure."""

    settle_seconds: float
    """How long the engine must have been idle, seen at two polls after the beginning."""
    until: float | None = None
    """When the time is up; None while nobody asked for a drain."""
    epoch: str | None = None
    """The life of the engine that alone is to end, "" for one not known yet; None where the worker is to go."""
    _since: float = 0.0
    _idle_since: float | None = None
    _idle_at: float = 0.0
    _silent_since: float | None = None

    def begin(self, now: float, seconds: float, *, epoch: str | None = None) -> bool:
        """End within ``seconds`` of now; whether this is the first that is heard of it. Asked again, it starts over.

        With an ``epoch`` it is about that life of the engine; asked once without one, it is about the worker.
        """
        first = self.until is None
        if first:
            self._since = now
        if first or epoch is None:
            self.epoch = epoch
        self.until = now + seconds
        return first

    def lives(self, epoch: str) -> bool:
        """A life of the engine begins; whether that ends a drain which was about an earlier one."""
        if self.until is None or self.epoch is None or self.epoch == epoch:
            return False
        self.until = self.epoch = None
        return True

    def observed(self, now: float, *, idle: bool) -> None:
        """The engine said at ``now`` whether anything runs or waits."""
        self._silent_since = None
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self._idle_at = now

    def unanswered(self, now: float) -> None:
        """The engine was asked and did not say; what it said before may be true no more."""
        self._idle_since = None
        if self._silent_since is None:
            self._silent_since = now

    def over(self, now: float, *, engine: bool) -> bool:
        """Whether it has ended: the engine is gone or hangs, or has been idle for long enough since, or the time is
        up.
        """
        if self.until is None:
            return False
        if not engine or now >= self.until:
            return True
        if self._silent_since is not None and now - self._silent_since >= SILENT_SECONDS:
            return True
        if self._idle_since is None or self._idle_at <= self._since:
            return False
        return self._idle_at - max(self._idle_since, self._since) >= self.settle_seconds
