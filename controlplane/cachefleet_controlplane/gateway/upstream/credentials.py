"""Keys by which the control plane authenticates to workers: one for each pool, found by a worker's URL."""

from __future__ import annotations

from collections.abc import Iterable

from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.tenancy import FleetKey


class Credentials:
    """Worker keys by engine URL, for the workers of the last pool views."""

    def __init__(self, fleet_key: FleetKey) -> None:
        self._fleet_key = fleet_key
        self._keys: dict[str, str] = {}

    def update(self, views: Iterable[PoolView]) -> None:
        """Replace the keys by those of ``views``; to be called before the fleet's update: no worker without a key."""
        self._keys = {
            worker.url: key
            for view in views
            for key in (self._fleet_key.worker_key(view.key),)
            for worker in view.workers
        }

    def of(self, url: str) -> str:
        """Return the key of the worker at ``url``; "" for one that no pool has."""
        return self._keys.get(url, "")

    def of_pool(self, pool: str) -> str:
        """Return a pool's key, for its dedicated renderers, which are not its workers; "" for no pool."""
        return self._fleet_key.worker_key(pool) if pool else ""
