"""What one run of a workload gave, request by request."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Result:
    """What a run gave. Times are in seconds, one for each request or, of ``worst``, for each second."""

    policy: str
    blocks: int
    predicted_blocks: int = 0
    queues: list[float] = field(default_factory=list)
    """Work that a request met on its worker, as seconds of prefill."""
    worst: list[float] = field(default_factory=list)
    """The most that any worker had."""
    first_token: dict[int, float] = field(default_factory=dict)
    """From a request's arrival to its first token, by its number."""
    hits: dict[int, int] = field(default_factory=dict)
    """Blocks served from cache, by the request's number."""
    served: list[int] = field(default_factory=list)
    """How many each worker answered."""
    computed: list[int] = field(default_factory=list)
    """Prompt tokens that each worker computed."""
    waited: int = 0
    """Requests that had to wait for room."""
    preemptions: int = 0
    seconds: float = 0.0

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
