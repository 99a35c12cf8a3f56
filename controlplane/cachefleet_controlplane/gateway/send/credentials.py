"""Keys by which the control plane authenticates to workers, and names by which it knows them, by a worker's URL."""

from __future__ import annotations

from collections.abc import Sequence

from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.tenancy import FleetKey
from cachefleet_core.tls_names import worker_server_name


class Credentials:
    """Worker keys by engine URL and TLS names by either URL, for the workers of the last pool views."""

    def __init__(self, fleet_key: FleetKey) -> None:
        self._fleet_key = fleet_key
        self._keys: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def update(self, views: Sequence[PoolView]) -> None:
        """Replace the keys by those of ``views``; to be called before the fleet's update: no worker without a key."""
        self._keys = {
            worker.url: key
            for view in views
            for key in (self._fleet_key.worker_key(view.key),)
            for worker in view.workers
        }
        self._names = {
            url: worker_server_name(view.key)
            for view in views
            for worker in view.workers
            for url in (worker.url, worker.agent)
            if url
        }

    def of(self, url: str) -> str:
        """Return the key of the worker at ``url``; "" for one that no pool has."""
        return self._keys.get(url, "")

    def server_name(self, url: str) -> str:
        """Return the name in the certificate of the worker at ``url``; "" for one that no pool has."""
        return self._names.get(url, "")

    def of_pool(self, pool: str) -> str:
        """Return a pool's key, for its dedicated renderers, which are not its workers; "" for no pool."""
        return self._fleet_key.worker_key(pool) if pool else ""
