"""A replica that starts hears from the workers first: what they hold, and how busy they are.

Until then it would route by load alone, and with other replicas about nobody has to be served that badly. So it is not
ready while a ready worker's agent has not reported to it, but not for ever: an agent that cannot report is no reason to
do without a gateway. Once over it stays over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from cachefleet_controlplane.streams.stream import StreamState
from cachefleet_controlplane.workers.views import WorkerStatus

MAX_SHOWN: Final = 16
"""Workers named in the body of /readyz."""


class StartupGate:
    """Begins when the pools are known, and takes ``seconds`` at most."""

    def __init__(self, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began: float | None = None
        self._over = False

    def begin(self) -> None:
        """The pools are known; only the first time counts."""
        if self._began is None:
            self._began = self._clock()

    def awaited(self, workers: Callable[[], Iterable[WorkerStatus]]) -> list[str]:
        """The names of those still waited for, at most MAX_SHOWN; none once that is over."""
        if self._over or self._began is None:
            return []
        names = sorted({f"{one.pool}/{one.name}" for one in workers() if one.ready and not _known(one)})
        self._over = not names or self._clock() - self._began >= self._seconds
        return [] if self._over else names[:MAX_SHOWN]


def _known(worker: WorkerStatus) -> bool:
    """Its agent is here, and has said all that it holds and how busy it is."""
    return worker.connected and worker.stream == StreamState.LIVE and worker.report is not None
