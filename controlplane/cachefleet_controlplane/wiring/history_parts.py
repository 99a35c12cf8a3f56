"""Builds what remembers the last hour, and the simulator of its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachefleet_controlplane.admin.history.history_routes import HistorySource, Prefixes
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.history.cache_history import CacheHistory
from cachefleet_controlplane.history.recorded_requests import RecordedRequests
from cachefleet_controlplane.history.sampler import Sampler
from cachefleet_controlplane.simulation.simulator import Simulator
from cachefleet_controlplane.wiring.settings import Settings


@dataclass(frozen=True, slots=True)
class HistoryParts:
    """The last hour by pool, its requests as recorded, and the simulator of these."""

    cache: CacheHistory
    recorded: RecordedRequests
    simulator: Simulator

    def sampler(self, fleet: Fleet, waiting: Callable[[tuple[str, str]], int]) -> Sampler:
        """What fills ``cache``; run it as a task."""
        return Sampler(self.cache, fleet.view, fleet.models, waiting)

    def shown(self, prefixes: Prefixes) -> HistorySource:
        """What the admin API shows, with the hot prefixes."""
        return HistorySource(self.cache, prefixes)


def history_parts(settings: Settings, fleet: Fleet) -> HistoryParts:
    """Build all within the settings' memory."""
    recorded = RecordedRequests(settings.recorded_request_bytes)
    return HistoryParts(CacheHistory(), recorded, Simulator(fleet, recorded, memory=settings.simulation_memory_bytes))
