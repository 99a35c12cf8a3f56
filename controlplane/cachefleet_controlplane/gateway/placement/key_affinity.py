"""Which worker was sent the last prompt of a ``prompt_cache_key``: preferred among equals, like a conversation's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Final

from cachefleet_runtime.lru import LruMap

MAX_KEYS: Final = 65_536


class KeyAffinity:
    """The last worker of each key of each tenant and model, the MAX_KEYS last used; keys are kept as digests."""

    def __init__(self, limit: int = MAX_KEYS) -> None:
        self._workers: LruMap[bytes, str] = LruMap(limit)

    def of(self, tenant: str, model: str, key: str) -> tuple[str, Callable[[str], None]]:
        """The worker to prefer ("" for none), and what to call with the full name of the one that is chosen."""
        if not key:
            return "", _forget
        text = f"{tenant}\0{model}\0{key}".encode(errors="surrogatepass")
        named = hashlib.blake2b(text, digest_size=16).digest()
        return self._workers.use(named) or "", partial(self._workers.put, named)


def _forget(_: str) -> None:
    """Keep nothing: there is no key."""
