"""A worker's load, as its last report tells it."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_core.report_frames import State


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker's last State, and when it came."""

    state: State
    at: float
