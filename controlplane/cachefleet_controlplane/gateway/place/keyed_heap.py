"""Items in the order of keys that may change, as a heap. Pure.

A changed key adds an entry, and what is out of date is dropped once it comes to the top, or where it is the larger part
of all entries: so each call takes O(log n), amortised.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, Protocol, Self, TypeVar

SLACK: Final = 16
"""Entries out of date that are kept beside as many as there are items."""


class Ordered(Protocol):
    """What can be compared."""

    def __lt__(self, other: Self, /) -> bool: ...


Item = TypeVar("Item", bound=Ordered)
Key = TypeVar("Key", bound=Ordered)


class KeyedHeap(Generic[Item, Key]):
    """Items by their keys; of equal keys the least item goes first."""

    __slots__ = ("_entries", "_keys")

    def __init__(self) -> None:
        self._keys: dict[Item, Key] = {}
        self._entries: list[tuple[Key, Item]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, item: Item, key: Key) -> None:
        """Add an item, or change its key."""
        if self._keys.get(item) == key:
            return
        self._keys[item] = key
        heapq.heappush(self._entries, (key, item))
        if len(self._entries) > 2 * len(self._keys) + SLACK:
            self._entries = [(key, item) for item, key in self._keys.items()]
            heapq.heapify(self._entries)

    def drop(self, item: Item) -> None:
        """Take an item out, if it is there."""
        self._keys.pop(item, None)
        if not self._keys:
            self._entries.clear()

    def first(self) -> Item | None:
        """Return the item with the least key; None where there is none."""
        while self._entries:
            key, item = self._entries[0]
            if self._keys.get(item) == key:
                return item
            heapq.heappop(self._entries)
        return None
