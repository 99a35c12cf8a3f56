"""Values one behind the other, as parts of a bar of 100."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

WHOLE: Final = 100.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar; ``start`` and ``size`` are of WHOLE."""

    kind: str
    """Names its colour."""
    label: str
    value: float
    start: float
    size: float


def stacked(values: Iterable[tuple[str, str, float]], whole: float) -> tuple[Part, ...]:
    """Parts of (kind, label, value), of which ``whole`` fills the bar; empty ones are left out."""
    parts, at = [], 0.0
    for kind, label, value in values:
        size = min(WHOLE - at, WHOLE * value / whole) if whole > 0 else 0.0
        if size > 0:
            parts.append(Part(kind, label, value, round(at, 2), round(size, 2)))
            at += size
    return tuple(parts)
