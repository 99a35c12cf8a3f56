"""Hit ratio of a pool at another number of workers or another budget. Pure.

N workers of b idle blocks under cache-aware routing are taken as one least-recently-used cache of N * b blocks and the
ones of running requests, less two losses, measured as they are now, that grow with N as (1 - 1/N): what is computed
though another worker holds it, a share of all hits; and what else the pool serves less than one cache would (copies,
and that one worker evicts while another has room), taken as a share of the room. Where workers have room and
do not fill it though there is more to cache, routing does not use them, and more of them bring nothing.

With one worker nothing is known of how several would share; then only copies in the index are counted.

Where the pool's requests were played in outline lately, that corrects what the curve says of other sizes than today's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.capacity.outlined_sizes import Correction, OutlinedSizes
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_controlplane.capacity.pool_reuse import ReuseCurve

Ask = Callable[[Sequence[float]], ReuseCurve]
"""What caches of these rising sizes would have served."""

FILLED: Final = 0.9
"""Of the room: workers that hold less, though there is more to cache, are not all used."""
DEEPER: Final = 1.1
"""More to cache: so many times what is held has been asked for."""
MOST_LOST: Final = 0.95
"""Of the room, at most."""
STEPS: Final = 24
"""Of the search for the room that serves as much as is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A number of workers, or a budget, and what it would serve."""

    workers: int
    budget_factor: float
    """Of today's budget."""
    hit_ratio: float
    """Of the prompt tokens."""
    computed_tokens_per_second: float
    """Prompt tokens that would be computed, over all workers, under today's requests."""


@dataclass(frozen=True, slots=True)
class SharingLosses:
    """What several workers serve less than one cache of their size would."""

    share: float
    """Of the room, at today's number of workers."""
    elsewhere: float
    """Of the tokens that one cache would serve, those that only other workers had."""
    workers: int
    """Today's."""
    used: float
    """Blocks that routing uses at most, with today's budget; infinite where it uses all."""

    def grown(self, workers: float) -> float:
        """How much of today's losses so many workers have."""
        today = 1 - 1 / self.workers if self.workers > 1 else 1.0
        return max(0.0, 1 - 1 / workers) / today


class HitCurve:
    """Of one pool, in one window; ``outlined`` is one that tells of the pool as it is now."""

    def __init__(self, measures: PoolMeasures, ask: Ask, outlined: OutlinedSizes | None = None) -> None:
        self._measures = measures
        self._ask = ask
        self.outlined = outlined
        self.now = ask([1.0])
        """What was served, and asked for."""
        self.uncorrected = ask([measures.own * (1 - measures.duplicated)]).ratios[0]
        """What one cache of the workers' size, less the copies, would have served."""
        self.losses = _losses(measures, ask, self.now)
        self._correction = Correction(outlined, self._distances_ratio) if outlined else None

    @property
    def error(self) -> float:
        """The prediction for what there is, without regard to what was served, less what was served."""
        return self.uncorrected - self.now.served_ratio

    @property
    def doubt(self) -> float:
        """How far what it says of today's size is off what was served, by what it rests on."""
        return abs(self.outlined.error if self.outlined else self.error)

    @property
    def asked_rate(self) -> float:
        """Prompt tokens a second: those that engines looked up, or those of this replica's requests."""
        own = self.now.prompt_tokens / self.now.seconds if self.now.seconds else 0.0
        return self._measures.asked_rate or own

    def by_distances(self) -> HitCurve:
        """The same without an outline."""
        return self if self.outlined is None else HitCurve(self._measures, self._ask)

    def points(self, sizes: Sequence[tuple[int, float]]) -> list[CurvePoint]:
        """At each number of workers and factor of the budget."""
        found = zip(sizes, self.ratios(sizes, self._ask), strict=True)
        return [
            self._point(workers, factor, self._corrected(workers, factor, ratio)) for (workers, factor), ratio in found
        ]

    def ratios(self, sizes: Sequence[tuple[int, float]], ask: Ask) -> list[float]:
        """Hit ratios at each size by reuse distances, of the requests that ``ask`` knows: the pool's or a tenant's."""
        rooms = [self._room(workers, factor) for workers, factor in sizes]
        order = sorted(range(len(rooms)), key=rooms.__getitem__)
        whole = dict(zip(order, ask([rooms[place] for place in order]).ratios, strict=True))
        return [
            whole[place] * max(0.0, 1 - self.losses.elsewhere * self.losses.grown(workers))
            for place, (workers, _) in enumerate(sizes)
        ]

    def at(self, workers: int, factor: float = 1.0) -> CurvePoint:
        """At one number of workers."""
        return self.points([(workers, factor)])[0]

    def _distances_ratio(self, workers: int, factor: float) -> float:
        return self.ratios([(workers, factor)], self._ask)[0]

    def _corrected(self, workers: int, factor: float, ratio: float) -> float:
        if self._correction is None:
            return ratio
        return min(1.0, max(0.0, ratio + self._correction.at(workers, factor)))

    def _room(self, workers: int, factor: float) -> float:
        """A worker more takes no room away, and one less brings none, however large today's losses are."""
        today, room = self._measures.workers, self._room_less_losses(workers, factor)
        if workers == today:
            return room
        bound = self._room_less_losses(today, factor)
        return max(room, bound) if workers > today else min(room, bound)

    def _room_less_losses(self, workers: int, factor: float) -> float:
        measures, losses = self._measures, self.losses
        room = measures.room(workers, measures.budget_of(factor))
        room = min(room, losses.used * max(1.0, factor))
        return room * (1 - min(MOST_LOST, losses.share * losses.grown(workers)))

    def _point(self, workers: int, factor: float, ratio: float) -> CurvePoint:
        return CurvePoint(
            workers=workers,
            budget_factor=factor,
            hit_ratio=ratio,
            computed_tokens_per_second=(1 - ratio) * self.asked_rate,
        )


def _losses(measures: PoolMeasures, ask: Ask, now: ReuseCurve) -> SharingLosses:
    used = _used(measures, ask)
    served = now.served_ratio + now.elsewhere_ratio
    elsewhere = now.elsewhere_ratio / served if measures.workers > 1 and served else 0.0
    if measures.workers < 2:
        return SharingLosses(measures.duplicated, elsewhere, measures.workers, used)
    room = min(measures.own, used)
    low, high = 1 - MOST_LOST, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if ask([room * middle]).ratios[0] > served else (middle, high)
    return SharingLosses(1 - high, elsewhere, measures.workers, used)


def _used(measures: PoolMeasures, ask: Ask) -> float:
    """Blocks that are filled where routing leaves room, and more was asked for again; infinite where it does not."""
    if measures.held >= FILLED * measures.own:
        return float("inf")
    here, deeper = ask([measures.held, DEEPER * measures.held]).shares
    return float("inf") if deeper <= here else measures.held
