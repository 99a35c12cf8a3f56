"""Quantities as bars of characters: what each candidate would cost, and what became of a prompt's tokens. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import typer

from cachefleet_local.cli.listing import Item

LEAST: Final = 10
"""Characters of the longest bar on the narrowest terminal."""
MOST: Final = 80


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar."""

    sign: str
    colour: str
    label: str


WAIT: Final = Part("#", "yellow", "waits")
PREFILL: Final = Part("=", "blue", "computes the prompt")
LOADING: Final = Part("~", "cyan", "loads from host or disk")
OTHERS: Final = Part(":", "magenta", "others wait")
EVICTION: Final = Part("x", "red", "evicts")
SERVED: Final = Part("#", "green", "from cache")
LOST: Final = Part("x", "red", "predicted, not served")
COMPUTED: Final = Part("=", "blue", "computed, as predicted")
BEYOND: Final = Part("+", "cyan", "from cache, beyond what was predicted")

Amounts = Mapping[Part, float]
Row = tuple[str, str, Amounts]
"""A name, a figure, and what the bar is made of."""


def costs(candidate: Item) -> dict[Part, float]:
    """The parts of a candidate's cost in seconds; what waiting has paid for is taken off the last ones.

    A policy that looks at less has fewer parts.
    """
    rate, step, batch = candidate["tokensPerSecond"], candidate["interTokenSeconds"], candidate["batchedTokens"]

    def seconds(tokens: float) -> float:
        return float((tokens / rate if rate else 0.0) + step * math.ceil(tokens / batch if batch else 0.0))

    before = candidate["queuedTokens"] + candidate["inflightTokens"]
    wait = min(seconds(before), candidate["seconds"])
    prefill = min(seconds(before + candidate["uncachedTokens"]) - seconds(before), candidate["seconds"] - wait)
    loaded = candidate.get("loadingSeconds", 0.0) + candidate.get("adapterSeconds", 0.0)
    loading = min(loaded, candidate["seconds"] - wait - prefill)
    left = max(0.0, candidate["seconds"] - wait - prefill - loading)
    others = min(left, candidate["othersSeconds"])
    return {WAIT: wait, PREFILL: prefill, LOADING: loading, OTHERS: others, EVICTION: left - others}


def tokens(item: Item) -> dict[Part, float]:
    """A prompt's tokens by origin; empty where the engine did not report, or a Prefill worker transferred them."""
    prompt, predicted, cached = item["promptTokens"], item["predictedTokens"], item["cachedTokens"]
    if cached is None or not prompt or any(one["kind"] == "prefill" for one in item.get("attempts", ())):
        return {}
    lost = max(0, min(predicted, prompt) - cached)
    served = min(cached, predicted)
    beyond = max(0, cached - predicted)
    return {SERVED: served, BEYOND: beyond, LOST: lost, COMPUTED: max(0, prompt - served - beyond - lost)}


def chart(rows: Sequence[Row], *, width: int, colour: bool) -> Iterator[str]:
    """A line for each row, all on one scale; then what the signs mean."""
    names, numbers = (max((len(row[place]) for row in rows), default=0) for place in (0, 1))
    room = min(MOST, max(LEAST, width - names - numbers - 4))
    most = max((sum(amounts.values()) for *_, amounts in rows), default=0.0)
    for name, figure, amounts in rows:
        drawn = _bar(amounts, room / most if most else 0.0, colour=colour)
        yield f"{name:<{names}}  {figure:>{numbers}}  {drawn}".rstrip()
    shown = {part: None for *_, amounts in rows for part, amount in amounts.items() if amount}
    yield f"{'':<{names}}  {'':>{numbers}}  " + ", ".join(f"{_drawn(part, 1, colour)} {part.label}" for part in shown)


def _bar(amounts: Amounts, scale: float, *, colour: bool) -> str:
    """Every amount has a sign; sums are rounded, so that lengths of equal totals are equal."""
    drawn, reached, done = "", 0.0, 0
    for part, amount in amounts.items():
        reached += amount
        count = max(round(reached * scale) - done, 1 if amount * scale > _SEEN else 0)
        drawn += _drawn(part, count, colour)
        done += count
    return drawn


_SEEN: Final = 0.05
"""Of a character: less than that is not shown."""


def _drawn(part: Part, count: int, colour: bool) -> str:  # noqa: FBT001 - of this module alone
    return typer.style(part.sign * count, fg=part.colour) if colour and count else part.sign * count
