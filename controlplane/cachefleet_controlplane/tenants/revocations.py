"""Revocations of API keys that are in force in this process and not in the store yet: its disk may be full."""

from __future__ import annotations

from dataclasses import replace

from cachefleet_controlplane.store.tenant_records import KeyRecord, Tenancy
from cachefleet_core.tenancy import TenantId

KeyName = tuple[TenantId, str]
"""A tenant and the id of one of its keys."""


class Revocations:
    """The time of each by key, in Unix seconds. Only keys that are known are in it, so it is bounded as they are."""

    def __init__(self) -> None:
        self._waiting: dict[KeyName, float] = {}
        self.failure = ""
        """Why they could not be written when that was last tried."""

    def __contains__(self, key: KeyName) -> bool:
        return key in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def problem(self) -> str:
        """What is wrong while any waits; "" while none does."""
        if not self._waiting:
            return ""
        why = self.failure or "they are being written"
        return f"{len(self._waiting)} revoked API keys are refused here and not written, a restart would forget: {why}"

    def add(self, key: KeyName, now: float) -> None:
        """Revoke a key from now on; the first time counts."""
        self._waiting.setdefault(key, now)

    def drop(self, key: KeyName) -> None:
        """There is no such key."""
        self._waiting.pop(key, None)

    def waiting(self) -> tuple[tuple[KeyName, float], ...]:
        """All that have to be written, oldest first."""
        return tuple(self._waiting.items())

    def settle(self, stored: Tenancy) -> None:
        """Forget those that the store has, and those of keys that it has no more."""
        living = {(key.tenant, key.id) for key in stored.keys if key.revoked is None}
        self._waiting = {key: now for key, now in self._waiting.items() if key in living}

    def applied(self, key: KeyRecord) -> KeyRecord:
        """A key as the store has it, revoked where it is."""
        now = self._waiting.get((key.tenant, key.id))
        return key if now is None or key.revoked is not None else replace(key, revoked=now)
