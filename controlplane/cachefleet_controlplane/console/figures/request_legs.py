"""What a request waited for: the queue for room and each attempt, one behind the other, on a time line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.console.figures.bar_parts import WHOLE

_GOOD: Final = frozenset({"answered", "finished"})


@dataclass(frozen=True, slots=True)
class RequestLeg:
    """One wait or attempt; ``start`` and ``size`` are of WHOLE, ``seconds`` None where nobody measured it."""

    name: str
    outcome: str
    kind: str
    seconds: float | None
    start: float
    size: float


@dataclass(frozen=True, slots=True)
class TimeLine:
    """All legs, in order; ``first_token`` is a position of WHOLE."""

    seconds: float
    legs: tuple[RequestLeg, ...]
    first_token: float | None


def time_line(item: Mapping[str, Any]) -> TimeLine:
    """The time line of a decision of the admin API."""
    spans = list(_spans(item))
    ttft = item["ttftSeconds"]
    whole = max(sum(seconds or 0.0 for *_, seconds in spans), ttft or 0.0)
    legs, at = [], 0.0
    for name, outcome, kind, seconds in spans:
        size = WHOLE * (seconds or 0.0) / whole if whole else 0.0
        legs.append(RequestLeg(name, outcome, kind, seconds, round(at, 2), round(size, 2)))
        at += size
    return TimeLine(whole, tuple(legs), round(WHOLE * ttft / whole, 2) if ttft is not None and whole else None)


def _spans(item: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float | None]]:
    if item["queuedSeconds"]:
        yield "waited for room", "", "wait", item["queuedSeconds"]
    for attempt in item["attempts"]:
        status = "" if attempt["status"] is None else f", status {attempt['status']}"
        kind = "prefill" if attempt["kind"] == "prefill" else "served" if attempt["outcome"] in _GOOD else "lost"
        name = f"{attempt['worker']}{' computes the prompt' if kind == 'prefill' else ''}"
        yield name, attempt["outcome"] + status, kind, attempt["seconds"]
