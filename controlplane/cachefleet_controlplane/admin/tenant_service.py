"""What the admin API does about tenants: the store is changed, and this replica knows of it before the answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from cachefleet_controlplane.store.sql_tenants import SqlTenants, TenantConflictError
from cachefleet_controlplane.store.tenant_records import KeyRecord, TenantRecord
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_core.tenancy import API_KEY_HINT, TenantId, api_key_hash, new_api_key

T = TypeVar("T")

PRIVATE: Final = (
    "each replica of the control plane has a database of its own, and a tenant or key made in one would be unknown to "
    "the others: give them one PostgreSQL (CACHEFLEET_DATABASE_URL), or run one replica"
)
_KEY_BYTES = 32
_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class TenantService:
    """See the module. Errors are those of SqlTenants; ``wall_clock`` is Unix time, ``random`` gives so many bytes.

    ``private``: other replicas have stores of their own, so nothing is changed: TenantConflictError.
    """

    tenants: Tenants
    repository: SqlTenants
    hash_key: bytes
    wall_clock: Callable[[], float] = time.time
    random: Callable[[int], bytes] = secrets.token_bytes
    private: bool = False

    async def all(self) -> list[TenantRecord]:
        return await self.tenants.ask(self.repository.tenants)

    async def one(self, name: TenantId) -> TenantRecord:
        return await self.tenants.ask(lambda: self.repository.tenant(name))

    async def create(self, tenant: TenantRecord) -> TenantRecord:
        made = replace(tenant, created=self.wall_clock())
        await self._change(lambda: self.repository.create(made))
        return made

    async def change(self, name: TenantId, fields: Mapping[str, object]) -> TenantRecord:
        return await self._change(lambda: self.repository.change(name, fields))

    async def delete(self, name: TenantId) -> None:
        await self._change(lambda: self.repository.delete(name))

    async def keys(self, tenant: TenantId) -> list[KeyRecord]:
        return await self.tenants.ask(lambda: self.repository.keys(tenant))

    async def new_key(self, tenant: TenantId, expires: float | None) -> tuple[KeyRecord, str]:
        """A key's record and the key itself, which nobody can show again."""
        record, key = self._make(tenant, expires)
        await self._change(lambda: self.repository.add_key(record))
        return record, key

    async def rotate(self, tenant: TenantId, expires: float | None, *, grace_seconds: float) -> tuple[KeyRecord, str]:
        """A new key, and the others end ``grace_seconds`` from now."""
        record, key = self._make(tenant, expires)
        await self._change(lambda: self.repository.rotate(record, grace_seconds=grace_seconds))
        return record, key

    async def revoke(self, tenant: TenantId, key_id: str) -> KeyRecord:
        now = self.wall_clock()
        return await self._change(lambda: self.repository.revoke(tenant, key_id, now=now))

    async def _change(self, work: Callable[[], T]) -> T:
        if self.private:
            raise TenantConflictError(PRIVATE)
        return await self.tenants.change(work)

    def _make(self, tenant: TenantId, expires: float | None) -> tuple[KeyRecord, str]:
        key = new_api_key(self.random(_KEY_BYTES))
        record = KeyRecord(
            id=self.random(_ID_BYTES).hex(),
            tenant=tenant,
            hash=api_key_hash(self.hash_key, key.encode()),
            hint=key[:API_KEY_HINT],
            created=self.wall_clock(),
            expires=expires,
        )
        return record, key
