"""What a simulation is given and what it finds, as they cross to the process that runs it and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cachefleet_controlplane.history.recorded_requests import RecordedRequest
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.workload import TraceLine

MAX_REQUESTS: Final = 20_000
NO_MEMORY: Final = 3
"""Exit status of a simulation that needs more memory than it may take."""
TOO_MUCH_WORK: Final = 4
"""Exit status of one that has done more than twice the work that was foreseen at most."""
WORK_PER_SECOND: Final = 100_000
"""Steps of requests and blocks that a slow core simulates in a second."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet to simulate, and the routing policy."""

    setup: Setup
    policy: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Requests, of a replica or of a trace, and the scenarios to play them through."""

    pool: dict[str, Any]
    """The declared pool's manifest."""
    contract: dict[str, Any]
    """The index contract of its workers."""
    records: tuple[RecordedRequest, ...] = ()
    trace: tuple[TraceLine, ...] = ()
    trace_block: int = 0
    warm_up: int = 0
    """Of the requests, how many only fill the caches: the first ones."""
    scenarios: tuple[Scenario, ...]
    most_work: int = 0
    """Steps of requests, blocks, reports and looks at a worker that all scenarios may take together."""

    def work(self, block_size: int) -> int:
        """The steps of requests and blocks that all scenarios take at least; what no engine takes has none."""
        lengths = [(line.input_length, line.output_length) for line in self.trace]
        lengths += [(record.prompt_tokens, record.completion_tokens) for record in self.records]
        longest = [scenario.setup.longest(block_size) for scenario in set(self.scenarios)]
        return sum(
            outputs + (tokens + outputs) // block_size
            for most in longest
            for tokens, outputs in lengths
            if tokens + outputs <= most
        )


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Sums and percentiles over the requests that count; None where there is nothing to tell."""

    requests: int
    prompt_tokens: int
    recomputed_tokens: int
    queue_p50_seconds: float | None
    queue_p99_seconds: float | None
    ttft_p50_seconds: float | None
    ttft_p95_seconds: float | None
    refused: int | None = None
    """Requests that have no place on any worker; None of what happened, which does not record them."""
    preemptions: int | None = None

    @property
    def hit_ratio(self) -> float | None:
        """Of the prompt tokens, those served from cache."""
        return 1 - self.recomputed_tokens / self.prompt_tokens if self.prompt_tokens else None


def happened(records: Sequence[RecordedRequest]) -> Figures:
    """What really happened to recorded requests."""
    prompt = sum(record.prompt_tokens for record in records)
    queues = [record.queue_seconds for record in records]
    firsts = [record.ttft_seconds for record in records if record.ttft_seconds is not None]
    return Figures(
        requests=len(records),
        prompt_tokens=prompt,
        recomputed_tokens=prompt - sum(record.cached_tokens for record in records),
        queue_p50_seconds=percentile(queues, 50),
        queue_p99_seconds=percentile(queues, 99),
        ttft_p50_seconds=percentile(firsts, 50),
        ttft_p95_seconds=percentile(firsts, 95),
    )


def percentile(values: Sequence[float], share: int) -> float | None:
    """The smallest value that ``share`` percent of all do not exceed; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, -(-len(values) * share // 100) - 1)]
