"""What a scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Cumulative, as the engine's metrics show them."""

    preemptions: int = 0
    queries: int = 0
    hits: int = 0
