"""Encrypts what the database keeps of prompts and answers: AES-256-GCM under a key for each tenant."""

from __future__ import annotations

import hmac
import os
import zlib
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cachefleet_core.tenancy import TenantId

_NONCE_BYTES: Final = 12
_VERSION: Final = b"\x01"
_LEVEL: Final = 1


class SealError(ValueError):
    """The stored bytes were not sealed for this tenant and this place, or not by this version."""


class TenantCipher:
    """Encrypts under keys derived from ``key`` and ``label``; ``random`` returns so many unpredictable bytes."""

    def __init__(self, key: bytes, label: bytes, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._key = key
        self._label = label
        self._random = random

    def seal(self, plain: bytes, *, tenant: TenantId, place: bytes) -> bytes:
        """Compress and encrypt what is kept for a tenant at a ``place``; return version, nonce and ciphertext."""
        nonce = self._random(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher(tenant).encrypt(nonce, zlib.compress(plain, _LEVEL), place)

    def open(self, sealed: bytes, *, tenant: TenantId, place: bytes) -> bytes:
        """Decrypt what ``seal`` returned for this tenant and place. SealError."""
        nonce, data = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        if sealed[:1] != _VERSION or len(nonce) != _NONCE_BYTES:
            raise SealError("not sealed by this version")
        try:
            return zlib.decompress(self._cipher(tenant).decrypt(nonce, data, place))
        except (InvalidTag, zlib.error) as error:
            raise SealError("not what was sealed here") from error

    def _cipher(self, tenant: TenantId) -> AESGCM:
        """HKDF-Expand of one block, as FleetKey derives its own."""
        return AESGCM(hmac.digest(self._key, self._label + tenant.encode() + b"\x01", "sha256"))
