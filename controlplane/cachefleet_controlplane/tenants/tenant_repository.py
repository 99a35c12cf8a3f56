"""What keeping tenants and keys fresh needs of the store."""

from __future__ import annotations

from typing import Protocol

from cachefleet_controlplane.store.tenant_records import KeyRecord, Tenancy
from cachefleet_core.tenancy import TenantId


class TenantRepository(Protocol):
    """What ``Tenants`` needs of the store. Calls block; every failure is a StoreError and has changed nothing."""

    @property
    def problem(self) -> str:
        """What is wrong although calls succeed; "" while all is well."""
        ...

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""

    def never_keyed(self) -> bool:
        """Whether a store that cannot be read certainly never had a key."""
        ...

    def load(self, known: Tenancy | None) -> Tenancy | None:
        """All tenants and keys; None where that is ``known``. A new, empty database is filled from ``known``."""
        ...

    def revoke(self, tenant: TenantId, key_id: str, *, now: float) -> KeyRecord:
        """Revoke a key; its record, unchanged where it was revoked before. TenantNotFoundError."""
        ...
