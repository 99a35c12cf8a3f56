"""A worker's load, as its last report tells it."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_core.report_frames import State


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker's last State, and when it came."""

    state: State
    at: float


def is_spare(load: WorkerLoad | None, free_percent: int) -> bool:
    """Whether nothing waits at a worker, and so much of its KV cache is free; so is one of which nothing is known."""
    if load is None:
        return True
    state = load.state
    return not state.waiting and state.blocks_free * 100 >= free_percent * state.blocks_total
