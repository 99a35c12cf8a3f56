"""Not ready until every ready worker's agent has reported to this replica, or a timeout.

Before that, this replica would route by load alone, while other replicas know the caches; and a pod of which no agent
has come yet gets no requests here. The timeout is for agents that cannot report: the gateway then serves without them.
It does not count while that would be to serve nobody at all: a rollout of such a replica must not end those that serve.
Once open, the gate stays open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from cachefleet_controlplane.fleet.view_builders import ReadyWorker

MAX_SHOWN: Final = 16
"""Workers named in the body of /readyz."""


class StartupReadiness:
    """Starts when the pools are known, and takes ``seconds`` at most where some ready worker may be sent requests."""

    def __init__(self, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began: float | None = None
        self._over = False

    def begin(self) -> None:
        """The pools are known; only the first call counts."""
        if self._began is None:
            self._began = self._clock()

    def awaited(self, workers: Callable[[], Iterable[ReadyWorker]]) -> list[str]:
        """The names of workers still waited for, at most MAX_SHOWN; none once the gate is open."""
        if self._over or self._began is None:
            return []
        ready = list(workers())
        names = sorted({one.full_name for one in ready if not one.reported})
        late = self._clock() - self._began >= self._seconds and any(one.vouched for one in ready)
        self._over = not names or late
        return [] if self._over else names[:MAX_SHOWN]
