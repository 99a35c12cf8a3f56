"""What one policy's run gave, and what it met on its way."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachefleet_controlplane.simulation.run_result import Result


@dataclass(slots=True, kw_only=True)
class PolicyResult(Result):
    """``queues`` has one for each request, ``worst`` for each second; ``served`` and ``computed`` for each worker."""

    policy: str
    blocks: int
    predicted_blocks: int = 0
    queues: list[float] = field(default_factory=list)
    """Work that a request met on its worker, as seconds of prefill."""
    worst: list[float] = field(default_factory=list)
    """The most that any worker had."""
    served: list[int] = field(default_factory=list)
    """How many each worker answered."""
    computed: list[int] = field(default_factory=list)
    """Prompt tokens that each worker computed."""
    waited: int = 0
    """Requests that had to wait for room."""

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
