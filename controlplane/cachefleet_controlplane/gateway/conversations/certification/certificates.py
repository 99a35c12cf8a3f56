"""Which render profiles are certified (A21), as the store has it and this replica knows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cachefleet_controlplane.gateway.conversations.records import Certificate
from cachefleet_controlplane.gateway.conversations.store_worker import StoreWorker
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_core.reports import Hello

VERSION: Final = 1
"""Of the examination: a newer one is passed anew."""
_MAX_REASON: Final = 256

Profile = tuple[str, str]
"""Fingerprints of render profile and index contract."""


def profile_of(hello: Hello) -> Profile:
    return hello.profile.fingerprint(), hello.contract.fingerprint()


class Certificates:
    """What is known of profiles; ``load`` brings it up to date. Without a store what was learnt since the start."""

    def __init__(self, store_worker: StoreWorker) -> None:
        self._store_worker = store_worker
        self._known: dict[Profile, Certificate] = {}

    async def load(self) -> None:
        """Take over what the store has. StoreError."""
        found = await self._store_worker.ask("certificates", lambda store: store.certificates())
        for one in found:
            known = self._known.get((one.profile, one.contract))
            if known is None or known.at <= one.at:  # what could not be written is newer
                self._known[one.profile, one.contract] = one

    def all(self) -> list[Certificate]:
        return sorted(self._known.values(), key=lambda one: (one.model, one.profile, one.contract))

    def of(self, profile: Profile) -> Certificate | None:
        """The certificate of the present examination; None where the profile has yet to pass it."""
        found = self._known.get(profile)
        return found if found is not None and found.version == VERSION else None

    def hold(self, profiles: Iterable[Profile]) -> bool:
        """Whether every one of them is certified, and there is one."""
        found = [self.of(profile) for profile in profiles]
        return bool(found) and all(one is not None and one.certified for one in found)

    async def put(self, certificate: Certificate) -> None:
        """Take note of one; a store that fails is counted, and the certificate holds here until the next start."""
        certificate = replace(certificate, reason=certificate.reason[:_MAX_REASON])
        self._known[certificate.profile, certificate.contract] = certificate
        try:
            await self._store_worker.ask("certify", lambda store: store.certify(certificate))
        except StoreError:
            return

    async def revoke(self, profiles: Iterable[Profile], *, reason: str, at: float) -> list[Certificate]:
        """Switch off what is certified of these; those that were."""
        held = [one for profile in profiles if (one := self.of(profile)) is not None and one.certified]
        for one in held:
            await self.put(replace(one, certified=False, reason=reason, at=at))
        return held
