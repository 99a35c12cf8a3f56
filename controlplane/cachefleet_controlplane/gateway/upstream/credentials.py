"""The keys that the control plane shows to workers: one for each pool, found by a worker's address."""

from __future__ import annotations

from collections.abc import Iterable

from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.tenancy import FleetKey


class Credentials:
    """Worker keys by engine address; as many as the last picture of the pools has workers."""

    def __init__(self, fleet_key: FleetKey) -> None:
        self._fleet_key = fleet_key
        self._keys: dict[str, str] = {}

    def update(self, views: Iterable[PoolView]) -> None:
        """Take over a picture; call it before the fleet does, so that no worker is known without its key."""
        self._keys = {
            worker.url: key
            for view in views
            for key in (self._fleet_key.worker_key(view.key),)
            for worker in view.workers
        }

    def of(self, url: str) -> str:
        """The key of the worker at ``url``; "" for one that no pool has."""
        return self._keys.get(url, "")

    def of_pool(self, pool: str) -> str:
        """The key of a pool, for who renders for it without being one of its workers; "" for none."""
        return self._fleet_key.worker_key(pool) if pool else ""
