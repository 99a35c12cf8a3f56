"""Which worker was sent the last prompt of a ``prompt_cache_key``: preferred among equals, like a conversation's."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_runtime.lru import LruMap

MAX_KEYS: Final = 65_536


class KeyAffinity:
    """The last worker of each key of each tenant and model, the MAX_KEYS last used; keys are kept as digests."""

    def __init__(self, limit: int = MAX_KEYS) -> None:
        self._workers: LruMap[bytes, str] = LruMap(limit)

    def applied(self, request: Request) -> Request:
        """Return a request that has a key with the worker to prefer; the one that it is sent to is kept."""
        if not request.info.cache_key:
            return request
        digest = _digest(request)
        sent_to = partial(self._workers.put, digest)
        return replace(request, preferred=self._workers.use(digest) or "", sent_to=sent_to)


def _digest(request: Request) -> bytes:
    model = request.model
    text = f"{request.tenant.name}\0{model.namespace}/{model.upstream}\0{request.info.cache_key}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
