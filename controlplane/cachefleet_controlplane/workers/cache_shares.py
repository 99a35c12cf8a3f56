"""Tenants' shares of the idle cache, as workers are told them, and what tenants have of it. Pure.

Workers know tenants by the digests of their salts alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.views import OTHERS, HeldCache, IdleCache
from cachefleet_core.budget import mebibytes
from cachefleet_core.pool.policy import TenancySpec
from cachefleet_core.report_fields import SaltShare
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId, salt_digest, tenant_salt


class CacheShares:
    """Makes digests of tenants' salts, and names of these; ``tenants`` are all there are, ``version`` a salt's."""

    def __init__(
        self, salt_key: bytes, version: Callable[[TenantId], int], tenants: Callable[[], Iterable[TenantId]]
    ) -> None:
        self._salt_key = salt_key
        self._version = version
        self._tenants = tenants
        self._names: dict[str, TenantId] | None = None

    def salt_shares(self, tenancy: TenancySpec) -> tuple[SaltShare, ...]:
        """The shares of tenants that have one of their own, those with a contract first."""
        return tuple(
            SaltShare(
                salt=self._digest(TenantId(one.tenant)),
                share=one.share,
                guaranteed=True,
                retention_seconds=one.retention_seconds,
            )
            for one in tenancy.contracts
        ) + tuple(
            SaltShare(salt=self._digest(TenantId(one.name)), share=one.share) for one in tenancy.cache_share.tenants
        )

    def forget(self) -> None:
        """Tenants or salts may have changed."""
        self._names = None

    def idle(self, pools: Iterable[Pool]) -> tuple[IdleCache, ...]:
        """What each tenant has of each pool's idle cache, by pool, the largest first."""
        return tuple(one for pool in pools for one in self._idle(pool))

    def held(self, pools: Iterable[Pool]) -> tuple[HeldCache, ...]:
        """What tenants with a contract have on each worker that is ready and reports."""
        return tuple(one for pool in pools if pool.declared.spec.tenancy.contracts for one in self._held(pool))

    def _held(self, pool: Pool) -> Iterator[HeldCache]:
        salts = {one.tenant: self._digest(TenantId(one.tenant)) for one in pool.declared.spec.tenancy.contracts}
        for worker in pool.workers.values():
            if worker.load is None or worker.hello is None or not worker.ready:
                continue
            for tenant, salt in salts.items():
                told = worker.load.state.held_by_salt.get(salt)
                idle, evicted = (None, 0) if told is None else (told.idle, told.evicted)
                yield HeldCache(pool.key, tenant, f"{worker.id} {worker.hello.epoch}", idle, evicted)

    def _idle(self, pool: Pool) -> list[IdleCache]:
        blocks, sizes = Counter[str](), Counter[str]()
        for worker in pool.workers.values():
            idle = {} if worker.load is None else worker.load.state.idle_by_salt
            for salt, count in idle.items():
                name = self._name(salt)
                blocks[name] += count
                sizes[name] += count * (worker.hello.block_bytes if worker.hello else 0)
        tenancy = pool.declared.spec.tenancy
        own = {one.name: one.share for one in tenancy.cache_share.tenants}
        own |= {one.tenant: one.share for one in tenancy.contracts}
        return [
            IdleCache(pool.key, name, own.get(name, tenancy.cache_share.default), count, mebibytes(1, sizes[name]))
            for name, count in blocks.most_common()
        ]

    def _name(self, salt: str) -> str:
        if self._names is None:
            self._names = {self._digest(tenant): tenant for tenant in {DEFAULT_TENANT, *self._tenants()}}
        return self._names.get(salt, OTHERS)

    def _digest(self, tenant: TenantId) -> str:
        return salt_digest(tenant_salt(self._salt_key, tenant, self._version(tenant)))
