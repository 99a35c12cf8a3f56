"""Ids of text parts seen before: bounded by bytes, least recently used first, separate for each salt.

A salt stands for a tenant. An entry is found only under the salt it was stored with, so response times reveal nothing
of what other tenants have sent.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

ENTRY_OVERHEAD_BYTES: Final = 200
"""Memory of dictionary slot, key and tuple, besides the text and the ids themselves."""
LARGEST_SHARE: Final = 8
"""An entry larger than one such part of the bound is not kept."""


class Key(NamedTuple):
    """What ids depend on, and the tenant who may use them."""

    owner: int
    """Number of the tokenizer."""
    salt: str
    anchored: bool
    """Encoded as a part other than the text's first, where that differs."""
    text: str


Ids = tuple[int, ...]


class TokenCache:
    """Ids of text parts; thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, Ids] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._hits = self._misses = self._evicted = 0

    def find(self, keys: Iterable[Key]) -> dict[Key, Ids]:
        """The known ones of ``keys``, which become the most recently used."""
        found: dict[Key, Ids] = {}
        entries = self._entries
        with self._lock:
            for key in keys:
                ids = entries.get(key)
                if ids is None:
                    self._misses += 1
                else:
                    entries.move_to_end(key)
                    found[key] = ids
                    self._hits += 1
        return found

    def store(self, fresh: Mapping[Key, Ids]) -> None:
        """Store ``fresh``, evicting the least recently used."""
        with self._lock:
            for key, ids in fresh.items():
                size = entry_bytes(key, ids)
                if size * LARGEST_SHARE > self._max_bytes:
                    continue
                self._drop(key)
                self._entries[key] = ids
                self._bytes += size
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._entries)))
                self._evicted += 1

    def forget(self, owner: int) -> None:
        """Drop everything of one tokenizer."""
        with self._lock:
            for key in [key for key in self._entries if key.owner == owner]:
                self._drop(key)

    def stats(self) -> dict[str, int]:
        """Counters since the start, and entries and bytes now."""
        with self._lock:
            return {
                "entries": len(self._entries),
                "bytes": self._bytes,
                "bytes_max": self._max_bytes,
                "part_hits": self._hits,
                "part_misses": self._misses,
                "evicted": self._evicted,
            }

    def _drop(self, key: Key) -> None:
        ids = self._entries.pop(key, None)
        if ids is not None:
            self._bytes -= entry_bytes(key, ids)


def entry_bytes(key: Key, ids: Sequence[int]) -> int:
    """Memory of one entry; the integers themselves are shared (segments.py)."""
    return ENTRY_OVERHEAD_BYTES + sys.getsizeof(key.text) + sys.getsizeof(ids)
