"""Encrypts stored conversations, each bound to its tenant and response id."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_controlplane.store.content.tenant_cipher import SealError, TenantCipher
from cachefleet_core.tenancy import TenantId

_LABEL: Final = b"cachefleet/history/"


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
        self._cipher = TenantCipher(key, _LABEL, random=random)

    def seal(self, history: ConversationHistory, *, tenant: TenantId, response: str) -> bytes:
        """Compress and encrypt; return version, nonce and ciphertext."""
        plain = msgspec.msgpack.encode(history)
        return self._cipher.seal(plain, tenant=tenant, place=_bound_to(tenant, response))

    def open(self, sealed: bytes, *, tenant: TenantId, response: str) -> ConversationHistory:
        """Decrypt what ``seal`` returned for this tenant and response. HistoryError."""
        try:
            plain = self._cipher.open(sealed, tenant=tenant, place=_bound_to(tenant, response))
            return msgspec.msgpack.decode(plain, type=ConversationHistory)
        except (SealError, msgspec.DecodeError) as error:
            raise HistoryError("not what was sealed for this response") from error


def _bound_to(tenant: TenantId, response: str) -> bytes:
    return msgspec.msgpack.encode((tenant, response))
