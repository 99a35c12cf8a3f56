"""What a request would have cost on each candidate, in seconds: the terms of ``routing.cost``, read from a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachefleet_controlplane.console.figures.bar_parts import Part, stacked

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CandidateBar:
    """One candidate of a decision."""

    item: Item
    name: str
    parts: tuple[Part, ...]
    words: str


def candidate_bars(candidates: Sequence[Item]) -> list[CandidateBar]:
    """All candidates on one scale: the dearest fills its bar."""
    terms = [_terms(one) for one in candidates]
    dearest = max((sum(value for *_, value in one) for one in terms), default=0.0)
    return [
        CandidateBar(one, _name(one), stacked(parts, dearest), _words(parts))
        for one, parts in zip(candidates, terms, strict=True)
    ]


def _terms(item: Item) -> list[tuple[str, str, float]]:
    """Wait and prefill as ``Throughput.seconds`` has them; what is left of the cost is cached tokens given up."""
    ahead = item["queuedTokens"] + item["inflightTokens"]
    wait, own = _seconds(item, ahead), _seconds(item, ahead + item["uncachedTokens"])
    loading, others = item["loadingSeconds"] + item["adapterSeconds"], item["othersSeconds"]
    evicted = max(0.0, item["seconds"] + item["paidSeconds"] - own - loading - others)
    return [
        ("wait", "wait", wait),
        ("prefill", "prefill", max(0.0, own - wait)),
        ("load", "loading", loading),
        ("others", "others wait", others),
        ("evict", "eviction", evicted if evicted > own * 1e-6 else 0.0),
    ]


def _seconds(item: Item, tokens: int) -> float:
    steps = math.ceil(tokens / item["batchedTokens"]) if item["batchedTokens"] else 0
    rate: float = item["tokensPerSecond"]
    each: float = item["interTokenSeconds"]
    return (tokens / rate if rate else 0.0) + each * steps


def _words(parts: Sequence[tuple[str, str, float]]) -> str:
    return ", ".join(f"{label} {1000 * value:,.0f} ms" for _, label, value in parts if value >= 0.0005) or "nothing"


def _name(item: Item) -> str:
    name = str(item["worker"]).partition("#")[0].rpartition("/")[2]
    return f"{name}#{item['rank']}" if item["rank"] else name
