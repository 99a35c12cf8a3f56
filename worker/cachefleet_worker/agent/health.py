"""Whether an engine can be trusted with requests, from what it counts: pure.

Two findings withdraw an engine until it is started anew: answers computed from something that is no number (the cache
may hold such blocks), and one error after the other of the engine's own, with no request that ended well in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

CORRUPTED: Final = "engine_corrupted"
ERRING: Final = "engine_erring"
FINDINGS: Final = (CORRUPTED, ERRING)
_FLOOR: Final = -9999.0
"""What vLLM writes for a log-probability that is no number or minus infinity; no token it chose has that."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine has counted since it started, over all ranks."""

    corrupted: int = 0
    errors: int = 0
    answered: int = 0

    def __add__(self, other: Reading) -> Reading:
        return Reading(self.corrupted + other.corrupted, self.errors + other.errors, self.answered + other.answered)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What is borne with."""

    corrupted: int = 0
    error_polls: int = 5
    """Polls in which errors were counted, and no request that ended well since the first of them."""


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of one life of an engine; ``finding`` says why it is not to be trusted, "" where it is."""

    last: Reading | None = None
    bad_polls: int = 0
    finding: str = ""


def step(health: Health, reading: Reading, tolerance: Tolerance) -> Health:
    """What is known after another reading. A finding stays."""
    last = health.last or reading
    bad = 0 if reading.answered > last.answered else health.bad_polls + (reading.errors > last.errors)
    return replace(health, last=reading, bad_polls=bad, finding=health.finding or _finding(reading, bad, tolerance))


def _finding(reading: Reading, bad_polls: int, tolerance: Tolerance) -> str:
    if reading.corrupted > tolerance.corrupted:
        return CORRUPTED
    return ERRING if bad_polls >= tolerance.error_polls else ""


def numbers(logprobs: Iterable[float | None]) -> bool:
    """Whether the log-probabilities, or logits, of tokens that an engine chose are numbers."""
    return all(value is not None and _FLOOR < value < inf for value in logprobs)  # NaN compares as False
