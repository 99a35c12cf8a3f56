"""A bounded cache whose entries expire."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cachefleet_runtime.lru import LruMap

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Expiring(Generic[K, V]):
    """A cache of at most ``size`` values, each with its own time to live; evicts the least recently used."""

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: LruMap[K, tuple[float, V]] = LruMap(size)

    def get(self, key: K) -> V | None:
        """The value of ``key``, None where there is none or it has expired. Counts as a use."""
        if (entry := self._entries.use(key)) is None:
            return None
        expires, value = entry
        if self._clock() >= expires:
            del self._entries[key]
            return None
        return value

    def put(self, key: K, value: V, *, seconds: float) -> None:
        """Set a value that expires ``seconds`` from now."""
        self._entries.put(key, (self._clock() + seconds, value))

    def __len__(self) -> int:
        return len(self._entries)
