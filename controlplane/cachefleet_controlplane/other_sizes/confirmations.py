"""Confirms advice by simulation: a pool's latest requests, through its fleet as it is and as advised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.capacity.advice import points
from cachefleet_controlplane.simulation.fleet_model import Changes
from cachefleet_controlplane.simulation.simulator import Simulate, Simulated, WantedSimulation
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.fleet_status.capacity_facts import AdviceFacts, CapacityFacts, ConfirmationFacts

KEPT_SECONDS: Final = 3600.0
"""How long a confirmation is shown."""


@dataclass(frozen=True, slots=True)
class _Kept:
    of: tuple[str, str, int, int]
    facts: ConfirmationFacts
    until: float


class Confirmations:
    """Capacities, with the latest confirmation of each pool beside the advice that it is of; call it for all pools.

    ``clock`` is monotonic, ``wall_clock`` in seconds since 1970.
    """

    def __init__(
        self,
        capacities: Callable[[], Sequence[CapacityFacts]],
        simulate: Simulate,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._capacities = capacities
        self._simulate = simulate
        self._clock = clock
        self._wall_clock = wall_clock
        self._kept: dict[str, _Kept] = {}

    def __call__(self) -> tuple[CapacityFacts, ...]:
        """All pools that there are."""
        found = tuple(self._capacities())
        now, there = self._clock(), {one.pool for one in found}
        self._kept = {pool: kept for pool, kept in self._kept.items() if pool in there and now < kept.until}
        return tuple(self._shown(one) if one.pool in self._kept else one for one in found)

    async def confirm(self, pool: str | None, action: str | None, requests: int) -> CapacityFacts:
        """Simulate a pool's advice, the first one if ``action`` is None; the pool with what came of it.

        ApiError 404 and 422 where the pool or the advice is not there, and what simulations raise.
        """
        one = _chosen(self(), pool)
        advice = _advised(one, action)
        simulated = await self._simulate(WantedSimulation(pool=one.pool, recorded=requests, changes=_changes(advice)))
        facts = confirmation(advice, simulated, self._wall_clock())
        self._kept[one.pool] = _Kept(_identity(one.pool, advice), facts, self._clock() + KEPT_SECONDS)
        return self._shown(one)

    def _shown(self, one: CapacityFacts) -> CapacityFacts:
        kept = self._kept[one.pool]
        advice = (
            replace(each, confirmed=kept.facts) if _identity(one.pool, each) == kept.of else each for each in one.advice
        )
        return replace(one, advice=tuple(advice))


def confirmation(advice: AdviceFacts, simulated: Simulated, wall: float) -> ConfirmationFacts:
    """What a simulation says of an advice. ApiError 422 where no request of it has a prompt."""
    today, then = simulated.today.figures.hit_ratio, simulated.changed.figures.hit_ratio
    if today is None or then is None:
        raise ApiError(422, "the simulated requests have no prompt tokens: send some first", param="requests")
    gained, count = then - today, simulated.today.figures.requests
    return ConfirmationFacts(
        at=datetime.fromtimestamp(wall, UTC),
        words=f"simulated with the last {count:,} requests: {100 * today:.1f} -> {100 * then:.1f} % hits, "
        f"{points(gained)} points; the curve says {points(advice.points / 100)}",
        requests=count,
        today=today,
        hit_ratio=then,
        points=100 * gained,
        error=advice.points - 100 * gained,
    )


def _chosen(found: Sequence[CapacityFacts], pool: str | None) -> CapacityFacts:
    named = [one for one in found if pool in {None, one.pool}]
    if len(named) == 1:
        return named[0]
    known = ", ".join(sorted(one.pool for one in found)) or "none"
    if named:
        raise ApiError(422, f"there are several pools: name one of {known}", param="pool")
    raise ApiError(404, f"there is no pool {pool or ''}".strip() + f"; pools: {known}", param="pool")


def _advised(one: CapacityFacts, action: str | None) -> AdviceFacts:
    found = next((each for each in one.advice if action in {None, each.action}), None)
    if found is None:
        there = ", ".join(each.action for each in one.advice) or one.words
        raise ApiError(422, f"pool {one.pool} has no such advice to confirm; it has: {there}", param="action")
    return found


def _changes(advice: AdviceFacts) -> Changes:
    size = advice.size
    return Changes(workers=size.workers, budget_mib=None if size.budget_factor == 1.0 else size.budget_mib)


def _identity(pool: str, advice: AdviceFacts) -> tuple[str, str, int, int]:
    return pool, advice.action, advice.size.workers, advice.size.budget_mib
