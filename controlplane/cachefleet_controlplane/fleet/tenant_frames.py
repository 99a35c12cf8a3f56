"""What workers are told that depends on tenants' salts: policies with tenants' shares, and warm prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cachefleet_controlplane.fleet.agent_connections import AgentConnections
from cachefleet_controlplane.pools.cache_salts import Salter
from cachefleet_controlplane.workers.cache_shares import CacheShares
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.views import HeldCache, IdleCache
from cachefleet_controlplane.workers.warm_prefixes import Warming
from cachefleet_core.tenancy import TenantId


class TenantFrames:
    """Keeps every pool's frames up to date, and sends those that change."""

    def __init__(
        self, salt_key: bytes, version: Callable[[TenantId], int], tenants: Callable[[], Iterable[TenantId]]
    ) -> None:
        self._warming = Warming(Salter(salt_key), version)
        self._shares = CacheShares(salt_key, version, tenants)

    def update(self, registry: Registry, agents: AgentConnections, fresh: Sequence[Pool]) -> None:
        """Send what has changed; policies of ``fresh`` pools are new in any case."""
        self._shares.forget()
        self._warming.keep(frozenset(registry.pools))
        for pool in registry.admitted():
            shares = self._shares.salt_shares(pool.declared.spec.tenancy)
            if shares != pool.tenant_shares or any(pool is one for one in fresh):
                pool.tenant_shares = shares
                agents.announce_policy(pool)
            fleet = [other.declared for other in registry.pools.values() if other.fleet == pool.fleet]
            warm = self._warming.frame(pool.declared, fleet)
            if warm is not pool.warm:
                pool.warm = warm
                agents.announce_warm(pool)

    def idle(self, pools: Iterable[Pool]) -> tuple[IdleCache, ...]:
        """What each tenant has of each pool's idle cache."""
        return self._shares.idle(pools)

    def held(self, pools: Iterable[Pool]) -> tuple[HeldCache, ...]:
        """What tenants with contracts have of each worker's idle cache."""
        return self._shares.held(pools)
