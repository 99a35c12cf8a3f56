"""A map bounded in entries that evicts the least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruMap(OrderedDict[K, V]):
    """At most ``limit`` entries; ``use`` and ``put`` count as uses, everything else is a dict's. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def use(self, key: K) -> V | None:
        """The value of ``key``, now the most recently used; None where there is none."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Set a value; evict the least recently used entry where there is one too many."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self.limit:
            self.popitem(last=False)
