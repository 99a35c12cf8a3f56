"""What phases of a flood tell: a quiet tenant's slowest hundredth beside each demand, how sure that is, its price."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench.bars import Bar
from bench.fairness_clients import Phase
from bench.rows import Row, median, percentile, ratio_interval, row

ALONE: Final = "alone"
MODEST: Final = "2 at a time"
HALF: Final = "its half"
FLOOD: Final = "24 at a time"
UNBOUNDED: Final = "no bound"
BAR: Final = Bar("fairness", rf"{FLOOD} beside", "ratio", 1.10)

Phases = Mapping[str, Sequence[Phase]]
"""Of one order of waiting, by what the noisy tenant asks for."""


class PhaseLog:
    """Phases by order of waiting and demand, as they end."""

    def __init__(self) -> None:
        self._phases: dict[str, dict[str, list[Phase]]] = defaultdict(lambda: defaultdict(list))

    def add(self, order: str, demand: str, phase: Phase) -> None:
        self._phases[order][demand].append(phase)

    def half(self) -> float:
        """Half of the noisy tenant's answers a second while it floods without a bound."""
        return median([phase.noisy_rate for phase in self._phases[UNBOUNDED][FLOOD]]) / 2

    def rows(self) -> Iterator[Row]:
        """Rows of all orders; those of bars have ``setting``, ``interval`` and ``price``."""
        free = self._phases.get(UNBOUNDED)
        for order, phases in self._phases.items():
            yield from rows(order, phases, free if free is not None else phases)


def p99s(phases: Sequence[Phase]) -> list[float]:
    """The slowest hundredth of the quiet tenant's answers by phase, in seconds."""
    return [percentile(phase.seconds, 99) for phase in phases]


def rows(order: str, phases: Phases, free: Phases) -> Iterator[Row]:
    """Medians of phases while the noisy tenant floods, beside its other demands; ``free``: phases without a bound."""
    name, flooded = f"real vLLM: {order}", phases[FLOOD]
    rate, free_rate = (median([phase.rate for phase in one[FLOOD]]) for one in (phases, free))
    for other in (MODEST, HALF):
        yield _judged(order, name, phases, other, rate / free_rate)
    title = f"{name}: p50 of another's answer, {FLOOD} beside {MODEST}"
    yield row(title, *(_middle(one, 50) for one in (flooded, phases[MODEST])), unit="s")
    for what, of in (("first token", _firsts), ("tokens after the first", _rests)):
        title = f"{name}: p99 of another's {what}, {FLOOD} beside {MODEST}"
        yield row(title, *(median([percentile(of(one), 99) for one in phases[by]]) for by in (FLOOD, MODEST)), unit="s")
    yield row(f"{name}: answers of all a second, {FLOOD} beside {UNBOUNDED}", rate, free_rate, unit="answers/s")
    yield row(f"{name}: answers of all a second, {MODEST}", median([one.rate for one in phases[MODEST]]), unit="1/s")
    yield row(f"{name}: requests of the quiet tenant, {FLOOD}", sum(len(one.seconds) for one in flooded), unit="")


def _judged(order: str, name: str, phases: Phases, other: str, price: float) -> Row:
    """The row of a bar, with the interval of its ratio."""
    ours, peer = p99s(phases[FLOOD]), p99s(phases[other])
    found = row(f"{name}: p99 of another's answer, {FLOOD} beside {other}", median(ours), median(peer), unit="s")
    sure = {"setting": order, "beside": other, "interval": ratio_interval(ours, peer), "price": price}
    return {**found, **sure, "phases": [ours, peer], "bar": str(BAR), "kept": BAR.holds(found["ratio"])}


def _middle(phases: Sequence[Phase], share: int) -> float:
    return median([percentile(phase.seconds, share) for phase in phases])


def _firsts(phase: Phase) -> list[float]:
    return phase.firsts


def _rests(phase: Phase) -> list[float]:
    return [whole - first for whole, first in zip(phase.seconds, phase.firsts, strict=True)]


def verdict(one: Row) -> str:
    """A sentence on the row of a bar: whether its setting meets it, whether the phases tell, and at which price."""
    low, high = one["interval"]
    sure = "" if (low <= BAR.limit) == (high <= BAR.limit) else ", which these phases do not tell for sure"
    met = "meets" if one["kept"] else "misses"
    figures = f"{one['ratio']:.2f} ({low:.2f} to {high:.2f}) beside {one['beside']}"
    return (
        f"{one['setting']} {met} {one['bar']}{sure}: {figures}, with {one['price']:.2f} of the answers of {UNBOUNDED}"
    )
