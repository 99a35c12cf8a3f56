"""Which salt a tenant's requests carry to the workers of a fleet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from cachefleet_core.pool import Isolation, PrefixCachePool
from cachefleet_core.tenancy import TenantId, tenant_salt

MAX_REMEMBERED: Final = 4096


class Salter:
    """Knows the salt key, and the MAX_REMEMBERED salts used last."""

    def __init__(self, salt_key: bytes) -> None:
        self._salt_key = salt_key
        self._salts: OrderedDict[TenantId, str] = OrderedDict()

    def salt(self, pools: Iterable[PrefixCachePool], tenant: TenantId) -> str:
        """The tenant's salt in a fleet of these pools; "" where every one of them shares its blocks."""
        if all(pool.spec.tenancy.isolation == Isolation.SHARED for pool in pools):
            return ""
        if tenant not in self._salts:
            self._salts[tenant] = tenant_salt(self._salt_key, tenant)
            if len(self._salts) > MAX_REMEMBERED:
                self._salts.popitem(last=False)
        self._salts.move_to_end(tenant)
        return self._salts[tenant]
