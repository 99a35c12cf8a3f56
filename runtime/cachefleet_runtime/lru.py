"""A map of at most so many entries, that forgets the least recently used one first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruMap(OrderedDict[K, V]):
    """``use`` and ``put`` count as uses; everything else is a dict's. Not for several threads at once."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def use(self, key: K) -> V | None:
        """The value of ``key``, which is the most recently used from now on; None where there is none."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Set a value, and forget the least recently used entry where there is one too many."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self.limit:
            self.popitem(last=False)
