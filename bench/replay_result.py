"""What one policy's run gave, and what it met on its way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cachefleet_controlplane.simulation.run_result import Result


@dataclass(slots=True, kw_only=True)
class PolicyResult(Result):
    """``backlogs`` has one for each request, in the order in which they were sent, ``worst`` one for each second."""

    policy: str
    blocks: int
    backlogs: list[float] = field(default_factory=list)
    """Work that a request met on its worker, as seconds of prefill."""
    worst: list[float] = field(default_factory=list)
    """The most that any worker had."""

    @property
    def served(self) -> list[int]:
        """How many each worker answered, in the order of their names."""
        return [count for _, count in sorted(Counter(self.workers.values()).items())]

    @property
    def first_tokens(self) -> list[float]:
        """In the order in which they came."""
        return list(self.first_token.values())

    @property
    def hit_blocks(self) -> int:
        """Blocks served from cache, in all."""
        return sum(self.hits.values())

    @property
    def hit_ratio(self) -> float:
        """Of all full blocks."""
        return self.hit_blocks / self.blocks
