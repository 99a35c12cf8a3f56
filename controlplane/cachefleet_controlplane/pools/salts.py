"""Which salt a tenant's requests carry to the workers of a fleet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefleet_core.pool.policy import Isolation
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.tenancy import TenantId, tenant_salt
from cachefleet_runtime.lru import LruMap

MAX_REMEMBERED: Final = 4096


def isolation(pools: Iterable[PrefixCachePool]) -> Isolation:
    """What holds in a fleet of these pools: blocks are shared only where every one of them shares."""
    shared = all(pool.spec.tenancy.isolation == Isolation.SHARED for pool in pools)
    return Isolation.SHARED if shared else Isolation.PER_TENANT


class Salter:
    """Knows the salt key, and the MAX_REMEMBERED salts used last."""

    def __init__(self, salt_key: bytes) -> None:
        self._salt_key = salt_key
        self._salts: LruMap[tuple[TenantId, int], str] = LruMap(MAX_REMEMBERED)

    def salt(self, pools: Iterable[PrefixCachePool], tenant: TenantId, version: int = 1) -> str:
        """The tenant's salt in a fleet of these pools; "" where every one of them shares its blocks.

        Each ``version`` (1 and up) has a salt of its own, so a tenant with a new one finds nothing of what was cached.
        """
        if isolation(pools) is Isolation.SHARED:
            return ""
        named = tenant, version
        salt = self._salts.use(named)
        if salt is None:
            salt = tenant_salt(self._salt_key, tenant, version)
            self._salts.put(named, salt)
        return salt
