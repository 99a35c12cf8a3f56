"""How long a worker usually takes until its first byte, and for how long its answers are waited for. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from msgspec import Struct

from cachefleet_controlplane.fleet.worker_troubles import Trouble

LEAST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 60.0
UNLEARNT_SECONDS: Final = 10.0
"""Patience with a worker that has answered nothing yet."""
STREAM_SECONDS: Final = 10.0
"""Patience with an answer that has begun, whose worker is not ready or serves nothing."""
SUSPENDED_SECONDS: Final = 60.0
"""How long an engine that serves nothing is waited for where no other worker would take the request."""
_MEAN_SHARE: Final = 1 / 8
_DEVIATION_SHARE: Final = 1 / 4
_DEVIATIONS: Final = 4


class AnswerLatency(Struct, frozen=True):
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


class Limits(NamedTuple):
    """Seconds of silence after which an answer is asked of another worker that would take it, or waited for no more."""

    move: float
    end: float


def limits(trouble: Trouble, usual: float, *, begun: bool) -> Limits:
    """The limits for a worker in trouble; ``usual`` is the patience with its first byte.

    One that is merely not ready may still answer what it has, and its connection tells where it cannot. Of a dead one,
    what was on its way may come late.
    """
    if trouble.dead_since is not None:
        return Limits(STREAM_SECONDS, STREAM_SECONDS)
    move = STREAM_SECONDS if begun else LEAST_SECONDS if trouble.suspended else usual
    return Limits(move, SUSPENDED_SECONDS if trouble.suspended else math.inf)
