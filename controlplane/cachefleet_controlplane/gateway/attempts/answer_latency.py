"""How long a worker usually takes until its first byte, and from when on it is overdue. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 60.0
UNLEARNT_SECONDS: Final = 10.0
"""Patience with a worker that has answered nothing yet."""
_MEAN_SHARE: Final = 1 / 8
_DEVIATION_SHARE: Final = 1 / 4
_DEVIATIONS: Final = 4


@dataclass(frozen=True, slots=True)
class AnswerLatency:
    """Smoothed mean and mean deviation of some seconds, as TCP has them of round trips (RFC 6298)."""

    mean: float
    deviation: float

    @classmethod
    def after(cls, before: AnswerLatency | None, seconds: float) -> AnswerLatency:
        """Return what is known once an answer has taken ``seconds``."""
        if before is None:
            return cls(seconds, seconds / 2)
        off = abs(seconds - before.mean)
        return cls(
            before.mean + _MEAN_SHARE * (seconds - before.mean),
            before.deviation + _DEVIATION_SHARE * (off - before.deviation),
        )


def patience(latency: AnswerLatency | None, *, predicted: float) -> float:
    """Seconds without a byte after which a worker is overdue; ``predicted`` are those of the request's decision."""
    usual = UNLEARNT_SECONDS if latency is None else latency.mean + _DEVIATIONS * latency.deviation
    return min(MOST_SECONDS, max(LEAST_SECONDS, usual, 2 * predicted))
