"""Encrypts stored conversations: AES-256-GCM under a key for each tenant, bound to tenant and response id."""

from __future__ import annotations

import hmac
import os
import zlib
from collections.abc import Callable
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from cachefleet_core.tenancy import TenantId

_NONCE_BYTES: Final = 12
_VERSION: Final = b"\x01"
_LEVEL: Final = 1


class HistoryError(ValueError):
    """The stored bytes were not sealed for this tenant and this response, or not by this version."""


class ConversationHistory(Struct, frozen=True):
    """A conversation up to a response; both members are JSON."""

    items: bytes
    """All input and output items, as one array."""
    response: bytes
    """The response as its client got it."""


class HistoryCipher:
    """Encrypts under keys derived from ``key``; ``random`` returns so many unpredictable bytes."""

    def __init__(self, key: bytes, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._key = key
        self._random = random

    def seal(self, history: ConversationHistory, *, tenant: TenantId, response: str) -> bytes:
        """Compress and encrypt; return version, nonce and ciphertext."""
        nonce = self._random(_NONCE_BYTES)
        plain = zlib.compress(msgspec.msgpack.encode(history), _LEVEL)
        return _VERSION + nonce + self._cipher(tenant).encrypt(nonce, plain, _bound_to(tenant, response))

    def open(self, sealed: bytes, *, tenant: TenantId, response: str) -> ConversationHistory:
        """Decrypt what ``seal`` returned for this tenant and response. HistoryError."""
        nonce, data = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        if sealed[:1] != _VERSION or len(nonce) != _NONCE_BYTES:
            raise HistoryError("not a sealed conversation of this version")
        try:
            plain = self._cipher(tenant).decrypt(nonce, data, _bound_to(tenant, response))
            return msgspec.msgpack.decode(zlib.decompress(plain), type=ConversationHistory)
        except (InvalidTag, zlib.error, msgspec.DecodeError) as error:
            raise HistoryError("not what was sealed for this response") from error

    def _cipher(self, tenant: TenantId) -> AESGCM:
        """HKDF-Expand of one block, as FleetKey derives its own."""
        return AESGCM(hmac.digest(self._key, b"cachefleet/history/" + tenant.encode() + b"\x01", "sha256"))


def _bound_to(tenant: TenantId, response: str) -> bytes:
    return msgspec.msgpack.encode((tenant, response))
