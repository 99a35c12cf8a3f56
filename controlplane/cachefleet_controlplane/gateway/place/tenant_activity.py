"""Who uses which fleets, and how much of each worker: what bounds a tenant only while others are there. Pure.

Of each fleet the tenant that was seen last is remembered, and when any other was: enough to tell whether somebody else
than a given tenant uses it.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from cachefleet_controlplane.gateway.place.fair_shares import Fleet

ACTIVE_SECONDS: Final = 60.0
"""How long a tenant counts as one that uses a fleet, after a request of its came or ended."""
MAX_FLEETS: Final = 1024
"""Beyond, the one that was seen first is forgotten."""


class Bounds(NamedTuple):
    """Beyond which a request waits though a worker has room for it."""

    seconds: float
    """Of the worker's prompts to compute."""
    sequences: float
    """Of its tenant, under way there."""

    def times(self, factor: int) -> Bounds:
        """So many times as much."""
        return Bounds(factor * self.seconds, factor * self.sequences)


UNBOUNDED: Final = Bounds(inf, inf)


class TenantActivity:
    """Moments are in seconds of any one clock."""

    __slots__ = ("_seen", "_underway")

    def __init__(self) -> None:
        self._seen: dict[Fleet, tuple[str, float, float | None]] = {}
        """The tenant of the latest request, when that was, and when the latest one of any other was."""
        self._underway: dict[tuple[str, str], int] = {}
        """Sequences by worker and tenant; none are 0."""

    def seen(self, fleet: Fleet, tenant: str, now: float) -> None:
        """Note that a request of a tenant comes or ends."""
        latest = self._seen.get(fleet)
        if latest is None:
            if len(self._seen) >= MAX_FLEETS:
                del self._seen[next(iter(self._seen))]
            self._seen[fleet] = tenant, now, None
            return
        name, at, others_at = latest
        self._seen[fleet] = tenant, now, others_at if name == tenant else at

    def shared(self, fleet: Fleet, tenant: str, now: float) -> bool:
        """Whether another tenant than this one was seen within ACTIVE_SECONDS."""
        latest = self._seen.get(fleet)
        if latest is None:
            return False
        name, at, others_at = latest
        other = others_at if name == tenant else at
        return other is not None and now - other <= ACTIVE_SECONDS

    def add(self, worker: str, tenant: str, sequences: int) -> None:
        """Count so many more sequences of a tenant on a worker, or fewer."""
        key = worker, tenant
        count = self._underway.get(key, 0) + sequences
        if count > 0:
            self._underway[key] = count
        else:
            self._underway.pop(key, None)

    def underway(self, worker: str, tenant: str) -> int:
        """How many sequences of a tenant a worker was sent that are not over."""
        return self._underway.get((worker, tenant), 0)
