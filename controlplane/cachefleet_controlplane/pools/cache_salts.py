"""The cache salt that a tenant's requests carry to the workers of a fleet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefleet_core.pool.policy import Isolation
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.tenancy import TenantId, tenant_salt
from cachefleet_runtime.known_results import known_of_tuples
from cachefleet_runtime.lru import LruMap

MAX_REMEMBERED: Final = 4096


@known_of_tuples
def isolation(pools: Iterable[PrefixCachePool]) -> Isolation:
    """The isolation of a fleet: SHARED only where every one of its pools shares blocks."""
    shared = all(pool.spec.tenancy.isolation == Isolation.SHARED for pool in pools)
    return Isolation.SHARED if shared else Isolation.PER_TENANT


class Salter:
    """Derives salts from the salt key; caches the MAX_REMEMBERED last used ones."""

    def __init__(self, salt_key: bytes) -> None:
        self._salt_key = salt_key
        self._salts: LruMap[tuple[TenantId, int], str] = LruMap(MAX_REMEMBERED)

    def salt(self, pools: Iterable[PrefixCachePool], tenant: TenantId, version: int = 1) -> str:
        """The tenant's salt in a fleet of these pools; "" where every one of them shares its blocks.

        Each ``version`` (1 and up) has a salt of its own, so with a new one nothing that was cached is found.
        """
        if isolation(pools) is Isolation.SHARED:
            return ""
        named = tenant, version
        salt = self._salts.use(named)
        if salt is None:
            salt = tenant_salt(self._salt_key, tenant, version)
            self._salts.put(named, salt)
        return salt
