"""What one run of a workload gave, request by request, or that it is not sound or too long."""

from __future__ import annotations

from dataclasses import dataclass, field


class SimulationError(RuntimeError):
    """A run that shows something that cannot be: its figures are worth nothing."""


class TooMuchWorkError(RuntimeError):
    """A run takes more than it may."""


class WorkBudget:
    """What all runs of a simulation may do: steps of requests, blocks, reports and looks at a worker, one each."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def spend(self, work: int) -> None:
        """Count work. TooMuchWorkError."""
        self._left -= work
        if self._left < 0:
            raise TooMuchWorkError


@dataclass(slots=True)
class Result:
    """What a run gave; times are in seconds."""

    first_token: dict[int, float] = field(default_factory=dict)
    """From a request's arrival to its first token, by its number."""
    hits: dict[int, int] = field(default_factory=dict)
    """Blocks served from cache, by the request's number."""
    preemptions: int = 0
