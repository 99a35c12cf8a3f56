"""Certificates of render profiles (A21), as the store has them and this replica knows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cachefleet_controlplane.gateway.converse.checkpoint_repository import SqlContinuations
from cachefleet_controlplane.gateway.converse.records import Certificate
from cachefleet_controlplane.store.content.store_thread import StoreThread
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.workers.render_profiles import Profile

VERSION: Final = 1
"""Version of the examination; profiles certified by another one are examined again."""
_MAX_REASON: Final = 256


class Certificates:
    """Certificates known here; ``load`` reads the store's. Without a store, those since the start."""

    def __init__(self, store_thread: StoreThread[SqlContinuations]) -> None:
        self._store_thread = store_thread
        self._known: dict[Profile, Certificate] = {}

    async def load(self) -> None:
        """Read the store's certificates, but keep newer ones that could not be written. StoreError."""
        found = await self._store_thread.ask("certificates", lambda store: store.certificates())
        for one in found:
            known = self._known.get((one.profile, one.contract))
            if known is None or known.at <= one.at:  # what could not be written is newer
                self._known[one.profile, one.contract] = one

    def all(self) -> list[Certificate]:
        """Return all certificates, by model, profile and contract."""
        return sorted(self._known.values(), key=lambda one: (one.model, one.profile, one.contract))

    def of(self, profile: Profile) -> Certificate | None:
        """Return a profile's certificate, granted or refused, of the present VERSION; None where it has none."""
        found = self._known.get(profile)
        return found if found is not None and found.version == VERSION else None

    def hold(self, profiles: Iterable[Profile]) -> bool:
        """Whether there are profiles, and every one of them is certified."""
        found = [self.of(profile) for profile in profiles]
        return bool(found) and all(one is not None and one.certified for one in found)

    async def put(self, certificate: Certificate) -> None:
        """Keep a certificate here and in the store; where the store fails it holds until the next start."""
        certificate = replace(certificate, reason=certificate.reason[:_MAX_REASON])
        self._known[certificate.profile, certificate.contract] = certificate
        try:
            await self._store_thread.ask("certify", lambda store: store.certify(certificate))
        except StoreError:
            return

    async def revoke(self, profiles: Iterable[Profile], *, reason: str, at: float) -> list[Certificate]:
        """Revoke the certificates of these profiles; return those that were valid."""
        held = [one for profile in profiles if (one := self.of(profile)) is not None and one.certified]
        for one in held:
            await self.put(replace(one, certified=False, reason=reason, at=at))
        return held
