"""Tenants and keys for the admin API: changes the store, and this replica's directory before the answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from cachefleet_controlplane.store.sql_tenants import Check, SqlTenants, TenantConflictError
from cachefleet_controlplane.store.tenant_records import KeyRecord, TenantRecord
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_core.tenancy import API_KEY_HINT, TenantId, api_key_hash, new_api_key

T = TypeVar("T")
Budget = Mapping[str, int | None]
"""A key's own limits by the calendar, by name."""

PRIVATE: Final = (
    "each replica of the control plane has a database of its own, and a tenant or key made in one would be unknown to "
    "the others: give them one PostgreSQL (CACHEFLEET_DATABASE_URL), or run one replica"
)
EPHEMERAL: Final = (
    "the control plane's store ends with its pod, and with the keys in it would go what keeps others out: give it a "
    "volume (controlPlane.persistence) or PostgreSQL (CACHEFLEET_DATABASE_URL), or set CACHEFLEET_API_KEYS=required"
)
_KEY_BYTES = 32
_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class TenantService:
    """Reads and changes tenants and keys. Errors are those of SqlTenants.

    ``wall_clock`` is Unix time in seconds, ``random`` gives so many random bytes. ``private``: each replica has a store
    of its own, so every change raises TenantConflictError. ``ephemeral``: the store ends with its pod, so making the
    keys that close the gateway does, too, unless it is closed by a setting.
    """

    tenants: Tenants
    repository: SqlTenants
    hash_key: bytes
    wall_clock: Callable[[], float] = time.time
    random: Callable[[int], bytes] = secrets.token_bytes
    private: bool = False
    ephemeral: bool = False

    async def all(self) -> list[TenantRecord]:
        """All tenants by name."""
        return await self.tenants.ask(self.repository.tenants)

    async def tenant(self, name: TenantId) -> TenantRecord:
        """One tenant. TenantNotFoundError."""
        return await self.tenants.ask(lambda: self.repository.tenant(name))

    async def create(self, tenant: TenantRecord) -> TenantRecord:
        """Store a new tenant, created now. TenantConflictError where the name is taken."""
        made = replace(tenant, created=self.wall_clock())
        await self._change(lambda: self.repository.create(made))
        return made

    async def change(self, name: TenantId, fields: Mapping[str, object], check: Check = lambda _: None) -> TenantRecord:
        """Set some fields of a tenant; the changed tenant. TenantNotFoundError; what ``check`` raises of it before."""
        return await self._change(lambda: self.repository.change(name, fields, check))

    async def delete(self, name: TenantId, check: Check = lambda _: None) -> None:
        """Delete a tenant with its keys and conversations. Errors as of ``change``."""
        await self._change(lambda: self.repository.delete(name, check))

    async def keys(self, tenant: TenantId) -> list[KeyRecord]:
        """A tenant's keys, oldest first. TenantNotFoundError."""
        keys = await self.tenants.ask(lambda: self.repository.keys(tenant))
        return [self.tenants.revocations.applied(key) for key in keys]

    async def new_key(
        self, tenant: TenantId, expires: float | None, models: tuple[str, ...] = (), budget: Budget | None = None
    ) -> tuple[KeyRecord, str]:
        """Make a key that ends at ``expires`` (Unix seconds), for those ``models`` or all, with limits of its own where
        ``budget`` has some: its record, and the key itself, which is not stored.
        """
        record, key = self._make(tenant, expires, models, budget or {})
        await self._change_keys(lambda: self.repository.add_key(record))
        return record, key

    async def rotate(
        self,
        tenant: TenantId,
        expires: float | None,
        models: tuple[str, ...] | None = None,
        budget: Budget | None = None,
        *,
        grace_seconds: float,
    ) -> tuple[KeyRecord, str]:
        """Make a key as ``new_key`` does, where ``models`` and ``budget`` are None for those of the newest one; the
        tenant's other keys end ``grace_seconds`` from now.
        """
        if models is None or budget is None:
            newest = next(reversed(await self.keys(tenant)), None)
            models = models if models is not None else newest.models if newest else ()
            budget = budget if budget is not None else newest.budget if newest else {}
        record, key = self._make(tenant, expires, models, budget)
        await self._change_keys(lambda: self.repository.rotate(record, grace_seconds=grace_seconds))
        return record, key

    async def revoke(self, tenant: TenantId, key_id: str) -> tuple[KeyRecord, bool]:
        """End a key now; its record, and whether the store has it: where not, it is written later.

        TenantNotFoundError.
        """
        self._check_shared()
        record = await self.tenants.revoke(tenant, key_id, now=self.wall_clock())
        return record, (tenant, key_id) not in self.tenants.revocations

    async def admit_all(self) -> None:
        """Serve requests without a key, where keys were made or may be lost.

        TenantConflictError where there are keys, or where they are required by a setting. Done with a private store
        too, for this replica alone.
        """
        if self.tenants.required:
            raise TenantConflictError("CACHEFLEET_API_KEYS is 'required': with 'auto' the gateway can be opened")
        await self.tenants.change(self.repository.admit_all)

    async def _change_keys(self, work: Callable[[], None]) -> None:
        if self.ephemeral and not self.tenants.required:
            raise TenantConflictError(EPHEMERAL)
        await self._change(work)

    def _check_shared(self) -> None:
        if self.private:
            raise TenantConflictError(PRIVATE)

    async def _change(self, work: Callable[[], T]) -> T:
        self._check_shared()
        return await self.tenants.change(work)

    def _make(
        self, tenant: TenantId, expires: float | None, models: tuple[str, ...], budget: Budget
    ) -> tuple[KeyRecord, str]:
        key = new_api_key(self.random(_KEY_BYTES))
        record = KeyRecord(
            id=self.random(_ID_BYTES).hex(),
            tenant=tenant,
            hash=api_key_hash(self.hash_key, key.encode()),
            hint=key[:API_KEY_HINT],
            created=self.wall_clock(),
            expires=expires,
            models=models,
            **budget,
        )
        return record, key
