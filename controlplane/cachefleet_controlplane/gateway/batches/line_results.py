"""What lines were answered, encrypted for the store under the key of their tenant."""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.gateway.batches.batch_object import Batch
from cachefleet_controlplane.store.content.tenant_cipher import TenantCipher

LABEL: Final = b"cachefleet/batches/"


class LineResults:
    """Seals lines of output files, each for its batch and number."""

    def __init__(self, key: bytes) -> None:
        self._cipher = TenantCipher(key, LABEL)

    def seal(self, batch: Batch, number: int, line: bytes) -> bytes:
        """Return a line encrypted."""
        return self._cipher.seal(line, tenant=batch.tenant, place=_place(batch, number))

    def open(self, batch: Batch, number: int, sealed: bytes) -> bytes:
        """Return a line that was sealed. SealError where the fleet key is another one now."""
        return self._cipher.open(sealed, tenant=batch.tenant, place=_place(batch, number))


def _place(batch: Batch, number: int) -> bytes:
    return f"{batch.id}/{number}".encode()
