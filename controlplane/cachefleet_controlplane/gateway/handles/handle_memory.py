"""Remembers which worker keeps which beginning of a conversation; bounded, and lost with this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cachefleet_core.continuation import Fingerprints, KeptPrefix
from cachefleet_runtime.lru import LruMap

PLACES: Final = 4
"""Workers that are remembered for one beginning; the one heard of last comes first."""


@dataclass(frozen=True, slots=True)
class Held:
    """A beginning as one worker keeps it."""

    url: str
    kept: KeptPrefix
    fingerprints: Fingerprints


class HandleMemory:
    """Workers by the digest of what they keep; at most ``limit`` beginnings, the least recently used dropped first."""

    def __init__(self, limit: int) -> None:
        self._held: LruMap[bytes, tuple[Held, ...]] = LruMap(limit)

    def __len__(self) -> int:
        return len(self._held)

    def at(self, digest: bytes) -> Sequence[Held]:
        """Return who keeps a beginning."""
        return self._held.use(digest) or ()

    def add(self, digest: bytes, held: Held) -> None:
        """Note that a worker keeps a beginning, under this handle from now on."""
        others = [one for one in self._held.get(digest, ()) if one.url != held.url]
        self._held.put(digest, (held, *others[: PLACES - 1]))

    def drop(self, digest: bytes, held: Held) -> None:
        """Note that a worker has lost a handle; a newer one of that worker stays."""
        left = tuple(one for one in self._held.get(digest, ()) if one != held)
        if left:
            self._held[digest] = left
        else:
            self._held.pop(digest, None)
