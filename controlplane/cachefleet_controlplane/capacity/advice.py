"""What is worth doing to a pool, by its hit curve: another worker, another budget, or nothing. Pure.

Each sentence has its numbers beside it. A gain counts where it is at least LEAST_GAIN and more than the curve's own
error. A worker is worth its devices where what its cache saves is a worker's work, or where the load, the queue or the
objective asks for it; a larger budget costs no device, so any gain that counts is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.capacity.desired_workers import HEADROOM, Desired, ScalingReason
from cachefleet_controlplane.capacity.hit_curve import CurvePoint, HitCurve
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_core.fleet_status.capacity_facts import (
    FEWER_WORKERS,
    LESS_BUDGET,
    MORE_BUDGET,
    MORE_WORKERS,
    NOTHING,
    UNKNOWN,
    WORTH,
    AdviceFacts,
    SizeFacts,
)

LEAST_GAIN: Final = 0.02
"""Of the hit ratio."""
MOST_ERROR: Final = 0.15
"""Of the curve: beyond it nothing is said."""
UNNOTICED: Final = 0.005
"""Of the hit ratio: what a smaller budget may cost."""
LEAST_FREED: Final = 0.25
"""Of the budget: what a smaller one is to give back at least."""
CROWDED: Final = 0.9
"""Of the blocks beside the budget: where running requests use more they lack room."""
STEPS: Final = 14
"""Of the search for a budget: to a ten-thousandth of the way."""
INEXACT: Final = 0.01
"""Of a step of budgets: what the search is off."""
GIB: Final = 1024
_ORDINALS: Final = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_ASKED_BY: Final = {
    ScalingReason.TOKENS: f"the load asks for it: it takes more than {HEADROOM:.0%} of what the workers compute",
    ScalingReason.CACHE: "the objective asks for it",
    ScalingReason.QUEUE: "requests wait",
}


@dataclass(frozen=True, slots=True)
class Advised:
    """A verdict in one sentence, and what could be done, what is worth it first."""

    verdict: str
    words: str
    items: tuple[AdviceFacts, ...] = ()


def unknown(why: str) -> Advised:
    """That nothing is known, and why."""
    return Advised(UNKNOWN, f"not known yet: {why}")


def advise(measures: PoolMeasures, curve: HitCurve, desired: Desired | None = None) -> Advised:
    """What is worth doing; ``desired`` is None where no worker has measured its rate."""
    if curve.doubt > MOST_ERROR:
        return unknown(f"the curve is {points(curve.error)} points off what was served")
    options = _Options(measures, curve, desired)
    found = [one for one in (make() for make in options.all()) if one is not None]
    items = tuple(sorted(found, key=lambda one: not one.worth))
    if items and items[0].worth:
        return Advised(WORTH, items[0].words, items)
    told = "; ".join(one.words for one in items)
    return Advised(NOTHING, f"nothing is worth doing{': ' * bool(told)}{told}", items)


def points(ratio: float) -> str:
    """A difference of hit ratios in points: +1.4."""
    return f"{100 * ratio:+.1f}"


def size_of(measures: PoolMeasures, point: CurvePoint) -> SizeFacts:
    """A point of the curve, as it is told."""
    return SizeFacts(
        workers=point.workers,
        budget_factor=point.budget_factor,
        budget_mib=measures.mib_of(measures.budget_of(point.budget_factor)),
        hit_ratio=point.hit_ratio,
        computed_tokens_per_second=point.computed_tokens_per_second,
    )


class _Options:
    """What could be done to one pool."""

    def __init__(self, measures: PoolMeasures, curve: HitCurve, desired: Desired | None) -> None:
        self._measures = measures
        self._curve = curve
        self._desired = desired
        self._now = curve.at(measures.workers)
        self._wanted = desired.workers if desired else measures.workers

    def all(self) -> tuple[Callable[[], AdviceFacts | None], ...]:
        return self._more_workers, self._more_budget, self._less_budget, self._fewer_workers

    def _more_workers(self) -> AdviceFacts:
        workers, same = self._measures.workers, ""
        then = self._curve.at(max(workers + 1, self._wanted))
        asked = self._wanted > workers
        saved = self._saved_workers(then)
        pays = self._counts(then) and saved is not None and saved >= then.workers - workers
        if self._counts(then) and (budget := self._budget_for(then.hit_ratio)) is not None:
            same = f"; {mib(self._mib_more(budget))} more budget of each device does the same"
        why = f"; {_ASKED_BY[self._desired.reason]}" if asked and self._desired else ""
        return self._advice(
            MORE_WORKERS, f"{_more(workers, then.workers)}: {self._change(then)}{same}{why}", then, worth=asked or pays
        )

    def _more_budget(self) -> AdviceFacts | None:
        measures = self._measures
        if not self._bounded or measures.most_budget <= measures.budget:
            return None
        most = measures.most_budget / measures.budget
        best = self._curve.at(measures.workers, most).hit_ratio
        another = self._curve.at(measures.workers + 1).hit_ratio
        enough = another if self._now.hit_ratio + LEAST_GAIN < another <= best else best - UNNOTICED
        then = self._curve.at(measures.workers, self._rounded_up(self._least(enough, 1.0, most), most))
        more = mib(self._mib_more(then.budget_factor))
        return self._advice(
            MORE_BUDGET, f"{more} more budget of each device: {self._change(then)}", then, worth=self._counts(then)
        )

    def _less_budget(self) -> AdviceFacts | None:
        measures = self._measures
        if not self._bounded:
            return None
        factor = self._rounded_up(self._least(self._now.hit_ratio - UNNOTICED, 0.0, 1.0), 1.0)
        if factor > 1 - LEAST_FREED:
            return None
        then, beside = self._curve.at(measures.workers, factor), measures.total - measures.budget
        crowded = measures.queued_requests > 0 or measures.used > CROWDED * beside * measures.workers
        less = mib(-self._mib_more(factor))
        words = f"{less} less budget of each device: {self._change(then)}"
        room = ", and running requests lack that room" if crowded else ""
        return self._advice(LESS_BUDGET, f"{words}{room}", then, worth=crowded and self._curve.doubt <= LEAST_GAIN)

    def _fewer_workers(self) -> AdviceFacts | None:
        workers = self._measures.workers
        if self._wanted >= workers:
            return None
        then = self._curve.at(workers - 1)
        return self._advice(
            FEWER_WORKERS, f"one worker less: {self._change(then)}; the load would fit", then, worth=True
        )

    @property
    def _bounded(self) -> bool:
        """Whether a budget is what bounds the caches, and its size is known."""
        return bool(self._measures.budget_mib and self._measures.budget and self._measures.block_mib)

    def _counts(self, then: CurvePoint) -> bool:
        return then.hit_ratio - self._now.hit_ratio >= max(LEAST_GAIN, self._curve.doubt)

    def _saved_workers(self, then: CurvePoint) -> float | None:
        saved = self._now.computed_tokens_per_second - then.computed_tokens_per_second
        return saved / self._measures.prefill_rate if self._measures.rate_measured else None

    def _budget_for(self, ratio: float) -> float | None:
        """The factor of the budget that serves so much with today's workers; None where none in reach does."""
        measures = self._measures
        most = measures.most_budget / measures.budget if self._bounded else 0.0
        if most <= 1 or self._curve.at(measures.workers, most).hit_ratio < ratio:
            return None
        return self._rounded_up(self._least(ratio, 1.0, most), most)

    def _least(self, ratio: float, low: float, high: float) -> float:
        """The least factor of the budget in a range that serves so much, as ``high`` does."""
        for _ in range(STEPS):
            middle = (low + high) / 2
            enough = self._curve.at(self._measures.workers, middle).hit_ratio >= ratio
            low, high = (low, middle) if enough else (middle, high)
        return high

    def _rounded_up(self, factor: float, most: float) -> float:
        """A budget that people would write, as a factor of today's."""
        each = self._measures.mib_of(self._measures.budget)
        wanted = factor * each
        unit = GIB if wanted >= 4 * GIB else 256 if wanted >= GIB else 16
        return min(most, math.ceil(wanted / unit - INEXACT) * unit / each)

    def _mib_more(self, factor: float) -> int:
        measures = self._measures
        return measures.mib_of(measures.budget_of(factor)) - measures.mib_of(measures.budget)

    def _change(self, then: CurvePoint) -> str:
        """The hit ratio now and then, and what that saves."""
        now, ratio = self._now.hit_ratio, then.hit_ratio
        digits = 0 if abs(ratio - now) >= LEAST_GAIN else 1
        words = f"{100 * now:.{digits}f} -> {100 * ratio:.{digits}f} % hits"
        saved = self._saved_workers(then)
        if saved is not None and abs(saved) >= 0.05:
            words += f", saves {saved:.1f}" if saved > 0 else f", takes {-saved:.1f}"
            words += f" worker{'s' * (f'{abs(saved):.1f}' != '1.0')} of prefill{'' if saved > 0 else ' more'}"
        return words + self._price(then)

    def _price(self, then: CurvePoint) -> str:
        worth = self._worth_per_hour(then)
        return "" if worth is None else f", {worth:.2f} an hour net of its devices"

    def _worth_per_hour(self, then: CurvePoint) -> float | None:
        hour, saved = self._measures.worker_hour, self._saved_workers(then)
        return None if hour is None or saved is None else hour * (saved + self._measures.workers - then.workers)

    def _advice(self, action: str, words: str, then: CurvePoint, *, worth: bool) -> AdviceFacts:
        return AdviceFacts(
            action=action,
            worth=worth,
            words=words,
            size=size_of(self._measures, then),
            points=100 * (then.hit_ratio - self._now.hit_ratio),
            saved_tokens_per_second=self._now.computed_tokens_per_second - then.computed_tokens_per_second,
            saved_workers=self._saved_workers(then),
            worth_per_hour=self._worth_per_hour(then),
            command=self._command(then),
        )

    def _command(self, then: CurvePoint) -> str:
        measures = self._measures
        budget = f"--budget {measures.mib_of(measures.budget_of(then.budget_factor))}"
        change = f"--workers {then.workers}" if then.workers != measures.workers else budget
        return f"cachefleet simulate --pool {measures.key} {change}"


def mib(amount: float) -> str:
    """Memory in words: 8 GiB, 512 MiB."""
    return f"{amount / GIB:,.4g} GiB" if amount >= GIB else f"{amount:,.0f} MiB"


def _more(workers: int, then: int) -> str:
    if then > workers + 1:
        return f"{then - workers} more workers"
    return f"a {_ORDINALS[then]} worker" if then < len(_ORDINALS) else f"worker {then}"
