"""Demand that the workers of a fleet do not meet: requests without a ready worker, and those that wait for room.

Each replica counts its own. Autoscalers read it, so a request that was refused counts for as long as a scrape may take
to see it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

FleetKey = tuple[str, str]
"""Namespace and model name."""

REFUSED_SECONDS: Final = 60
"""For so long a request that was refused for want of a worker counts as demand: two scrapes of a minute's half."""


class Demand:
    """Unmet demand of one fleet; ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused: deque[tuple[int, int]] = deque()
        """Requests refused within each second of the last REFUSED_SECONDS."""
        self.held = 0
        """Requests held until a worker is ready."""
        self.queued = 0
        """Requests that wait for room on a ready worker."""
        self.queued_blocks = 0
        """Blocks that these need."""

    @property
    def unserved(self) -> int:
        """Requests that are held, and those refused lately, since no worker was ready."""
        self._forget()
        return self.held + sum(requests for _, requests in self._refused)

    def refused(self) -> None:
        """Count a request that was refused since no worker is ready."""
        self._forget()
        second = int(self._clock())
        requests = self._refused.pop()[1] if self._refused and self._refused[-1][0] == second else 0
        self._refused.append((second, requests + 1))

    def _forget(self) -> None:
        oldest = self._clock() - REFUSED_SECONDS
        while self._refused and self._refused[0][0] < oldest:
            self._refused.popleft()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Count a request that is held, within this context."""
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1

    @contextmanager
    def queueing(self, blocks: int) -> Iterator[None]:
        """Count a request that waits for room and needs so many blocks, within this context."""
        self.queued += 1
        self.queued_blocks += blocks
        try:
            yield
        finally:
            self.queued -= 1
            self.queued_blocks -= blocks


class Demands:
    """The demand of each fleet that is declared."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fleets: dict[FleetKey, Demand] = {}

    def of(self, fleet: FleetKey) -> Demand:
        """The demand of a fleet; of one that is not declared it is forgotten with the next ``keep``."""
        if (demand := self._fleets.get(fleet)) is None:
            demand = self._fleets[fleet] = Demand(self._clock)
        return demand

    def keep(self, fleets: Iterable[FleetKey]) -> None:
        """Forget fleets that are declared no more."""
        kept = set(fleets)
        self._fleets = {fleet: demand for fleet, demand in self._fleets.items() if fleet in kept}
