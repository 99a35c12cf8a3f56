"""What one run of a workload gave, request by request, or that it is not sound or too long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


class SimulationError(RuntimeError):
    """A run that shows something that cannot be: its figures are worth nothing."""


class TooMuchWorkError(RuntimeError):
    """A run takes more than it may."""


class WorkBudget:
    """What all runs of a simulation may do: steps of requests, blocks, reports and looks at a worker, one each."""

    def __init__(self, limit: float = math.inf) -> None:
        self._left = limit

    def spend(self, work: int) -> None:
        """Count work. TooMuchWorkError."""
        self._left -= work
        if self._left < 0:
            raise TooMuchWorkError


@dataclass(slots=True)
class Result:
    """What a run gave, by the number of a request; times are in seconds."""

    workers: dict[int, str] = field(default_factory=dict)
    """The worker that it was sent to."""
    queues: dict[int, float] = field(default_factory=dict)
    """The time that it waited at the gateway, and its worker's queue as the decision predicted it."""
    first_token: dict[int, float] = field(default_factory=dict)
    """From its arrival to its first token."""
    hits: dict[int, int] = field(default_factory=dict)
    """Blocks served from cache."""
    predicted: dict[int, int] = field(default_factory=dict)
    """Blocks that the index predicted to be."""
    preemptions: dict[int, int] = field(default_factory=dict)
    waited: set[int] = field(default_factory=set)
    """Those that waited at the gateway."""
    refused: set[int] = field(default_factory=set)
    """Those that no worker takes."""
