"""A worker's load, as its last report tells it."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_controlplane.workers.inflight import InFlightRequests
from cachefleet_core.report_frames import State


@dataclass(slots=True)
class WorkerLoad:
    """A worker's last State, and the part of its waiting work that other senders caused."""

    state: State
    at: float
    others_tokens: int
    others_requests: int


def blank_blocks(load: WorkerLoad | None, own: InFlightRequests) -> int | None:
    """Blocks that hold nothing: free ones less idle cached ones, as the engine or its agent counts them."""
    if load is None or not load.state.blocks_total:
        return None
    state = load.state
    if state.blocks_idle is not None:
        blank = state.blocks_free - state.blocks_idle
    else:
        blank = min(state.blocks_free, state.blocks_total - state.held)
    return max(0, blank - own.blocks_since(load.at))
