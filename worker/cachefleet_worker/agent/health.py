"""Decides from an engine's counters whether it may serve requests: pure.

Two findings withdraw an engine until it restarts: answers computed from NaN or infinite numbers (cached blocks may hold
them), and repeated internal errors with no request that ended well in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

CORRUPTED: Final = "engine_corrupted"
ERRING: Final = "engine_erring"
FINDINGS: Final = (CORRUPTED, ERRING)


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of an engine since its start, summed over ranks."""

    corrupted: int = 0
    errors: int = 0
    answered: int = 0

    def __add__(self, other: Reading) -> Reading:
        return Reading(self.corrupted + other.corrupted, self.errors + other.errors, self.answered + other.answered)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Thresholds above which a finding withdraws the engine."""

    corrupted: int = 0
    error_polls: int = 5
    """Polls with new errors, and no request that ended well since the first of them."""


@dataclass(frozen=True, slots=True)
class Health:
    """Health of one engine process; ``finding`` is the reason for withdrawal, "" where there is none."""

    last: Reading | None = None
    bad_polls: int = 0
    finding: str = ""


def step(health: Health, reading: Reading, tolerance: Tolerance) -> Health:
    """The health after another reading. A finding stays."""
    last = health.last or reading
    bad = 0 if reading.answered > last.answered else health.bad_polls + (reading.errors > last.errors)
    return replace(health, last=reading, bad_polls=bad, finding=health.finding or _finding(reading, bad, tolerance))


def _finding(reading: Reading, bad_polls: int, tolerance: Tolerance) -> str:
    if reading.corrupted > tolerance.corrupted:
        return CORRUPTED
    return ERRING if bad_polls >= tolerance.error_polls else ""


def numbers(logprobs: Iterable[float | None]) -> bool:
    """Whether log-probabilities (or logits) of chosen tokens are all finite numbers."""
    return all(value is not None and -inf < value < inf for value in logprobs)  # NaN compares as False
