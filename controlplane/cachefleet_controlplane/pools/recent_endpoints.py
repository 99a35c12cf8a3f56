"""Endpoints of pools whose EndpointSlices went out of sight: kept for a while. Pure but for the clock.

A slice is gone from the watch where its Service was deleted, or where somebody took off the Service's label, and with
it that of its slices. The pods run on, so their endpoints stay until the operator has put that right. A Service that
is there has a slice, were it an empty one: what leaves that has left with its pod.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cachefleet_controlplane.pools.kubernetes_objects import PoolEndpoints

KEPT_SECONDS: Final = 60.0
"""How long endpoints stay that no slice of their pool tells of."""
MOVED_SECONDS: Final = 1.0
"""How long those of one slice stay while the pool has others, to which they may be about to move."""


@dataclass(frozen=True, slots=True)
class _Gone:
    """A slice that went out of sight, and when."""

    endpoints: PoolEndpoints
    since: float


class RecentEndpoints:
    """Remembers slices, at most as many as there were in the last KEPT_SECONDS. ``clock`` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._live: dict[str, PoolEndpoints] = {}
        self._gone: dict[str, _Gone] = {}

    def with_kept(self, live: Mapping[str, PoolEndpoints], *, pools: Container[str]) -> list[PoolEndpoints]:
        """The slices that are there, by namespace and name, and of those that are not any more the endpoints to keep:
        of ``pools``, which are those there are, by key.
        """
        now = self._clock()
        gone = {key: _Gone(part, now) for key, part in self._live.items() if key not in live and part.endpoints}
        self._live = dict(live)
        known = {key: one for key, one in {**self._gone, **gone}.items() if key not in live}
        known = {key: one for key, one in known.items() if one.endpoints.pool in pools}
        seen = {part.pool for part in live.values()}
        self._gone = {key: one for key, one in known.items() if now - one.since < _kept_seconds(one, seen)}
        names = {(part.pool, each.name) for part in live.values() for each in part.endpoints}
        return [*live.values(), *(_without(one.endpoints, names) for one in self._gone.values())]

    def ends_in(self) -> float | None:
        """Seconds until kept endpoints may have to go, None where none are kept."""
        now, seen = self._clock(), {part.pool for part in self._live.values()}
        return min((one.since + _kept_seconds(one, seen) - now for one in self._gone.values()), default=None)


def _kept_seconds(gone: _Gone, seen: set[str]) -> float:
    return MOVED_SECONDS if gone.endpoints.pool in seen else KEPT_SECONDS


def _without(part: PoolEndpoints, names: set[tuple[str, str]]) -> PoolEndpoints:
    return replace(part, endpoints=tuple(each for each in part.endpoints if (part.pool, each.name) not in names))
