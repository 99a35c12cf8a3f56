"""What one run of a workload gave, request by request, or that it is not sound."""

from __future__ import annotations

from dataclasses import dataclass, field


class SimulationError(RuntimeError):
    """A run that shows something that cannot be: its figures are worth nothing."""


@dataclass(slots=True)
class Result:
    """What a run gave; times are in seconds."""

    first_token: dict[int, float] = field(default_factory=dict)
    """From a request's arrival to its first token, by its number."""
    hits: dict[int, int] = field(default_factory=dict)
    """Blocks served from cache, by the request's number."""
    preemptions: int = 0
