"""Handles to prompt prefixes, valid in the engine's present epoch: pure, bounded in number and in bytes.

A handle's name holds the epoch and the number of clears, so that a stale handle is told from an unknown one. The least
recently used are evicted first. A new prefix replaces its equals and its own prefixes of the same salt and
fingerprints: a growing conversation has one entry.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cachefleet_core.continuation import HANDLE_PREFIX, Fingerprints, RefusalCode, hash_name, packed, prefix_hash

ENTRY_BYTES: Final = 512
"""Bytes counted for an entry besides its ids."""
_ID_BYTES: Final = 4

Scope = tuple[str, Fingerprints]


class RefusedError(Exception):
    """A prefix may not be continued; ``code`` is the reason."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A kept prefix; ``expires_at`` in seconds on the caller's clock."""

    handle: str
    ids: array[int]
    prefix_hash: str
    fingerprints: Fingerprints
    salt: str
    ends_at_boundary: bool
    expires_at: float

    @property
    def scope(self) -> Scope:
        """Salt and fingerprints; prefixes replace each other only within a scope."""
        return self.salt, self.fingerprints

    @property
    def size(self) -> int:
        """Bytes that this entry counts."""
        return ENTRY_BYTES + _ID_BYTES * len(self.ids)


class Handles:
    """The handles of one engine. ``token`` returns unguessable names."""

    def __init__(self, *, max_entries: int, max_bytes: int, token: Callable[[], str]) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._token = token
        self._epoch = ""
        self._clears = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._named: dict[tuple[Scope, str], str] = {}
        self._lengths: dict[Scope, Counter[int]] = {}
        self.bytes = 0
        self.counts: Counter[str] = Counter()
        """Entries by outcome: minted, replaced, evicted, expired, cleared_*, corrupt, not_kept."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def tag(self) -> str:
        """What the names of all valid handles begin with, after HANDLE_PREFIX."""
        return f"{self._epoch}_{self._clears}_"

    def begin(self, epoch: str) -> None:
        """Begin an epoch: drop every handle of the one before."""
        self.clear("epoch")
        self._epoch = hashlib.sha256(epoch.encode()).hexdigest()[:12]

    def clear(self, reason: str) -> None:
        """Drop every handle; their names are stale from now on."""
        self.counts[f"cleared_{reason}"] += len(self._entries)
        self._clears += 1
        self._entries.clear()
        self._named.clear()
        self._lengths.clear()
        self.bytes = 0

    def resize(self, max_entries: int) -> None:
        """Set the largest number of entries, and evict down to it."""
        self._max_entries = max_entries
        self._bound()

    def mint(
        self,
        ids: array[int],
        fingerprints: Fingerprints,
        *,
        salt: str,
        ends_at_boundary: bool,
        expires_at: float,
    ) -> Entry | None:
        """Keep a prefix; None, and nothing else changed, where it does not fit."""
        name = f"{HANDLE_PREFIX}{self.tag}{self._token()}"
        entry = Entry(name, ids, prefix_hash(ids), fingerprints, salt, ends_at_boundary, expires_at)
        if not ids or not self._max_entries or entry.size > self._max_bytes:
            self.counts["not_kept"] += 1
            return None
        self._replace_prefixes(entry)
        self._add(entry)
        self._bound()
        self.counts["minted"] += 1
        return entry

    def get(self, handle: str, now: float) -> Entry:
        """The entry of a handle, which becomes the most recently used. RefusedError."""
        if not handle.startswith(f"{HANDLE_PREFIX}{self.tag}"):
            raise RefusedError(RefusalCode.STALE_EPOCH, "the handle is not of this engine's present epoch")
        entry = self._entries.get(handle)
        if entry is None:
            raise RefusedError(RefusalCode.HANDLE_UNKNOWN, "no such handle is kept")
        if now >= entry.expires_at:
            self._drop(entry, "expired")
            raise RefusedError(RefusalCode.HANDLE_EXPIRED, "the handle's time is over")
        if prefix_hash(entry.ids) != entry.prefix_hash:
            self._drop(entry, "corrupt")
            raise RefusedError(RefusalCode.HANDLE_CORRUPT, "what was kept is damaged")
        self._entries.move_to_end(handle)
        return entry

    def current(self, entry: Entry) -> bool:
        """Whether the entry is of the present epoch, with no clear since it was minted."""
        return entry.handle.startswith(f"{HANDLE_PREFIX}{self.tag}")

    def _replace_prefixes(self, entry: Entry) -> None:
        """Drop kept prefixes of the new ids: one digest per length kept in the scope, in one pass over the ids."""
        digest, at, data = hashlib.sha256(), 0, packed(entry.ids)
        for length in sorted(self._lengths.get(entry.scope, ())):
            if length > len(entry.ids):
                return
            digest.update(data[at * _ID_BYTES : length * _ID_BYTES])
            at = length
            name = self._named.get((entry.scope, hash_name(digest)))
            if name is not None:
                self._drop(self._entries[name], "replaced")

    def _add(self, entry: Entry) -> None:
        self._entries[entry.handle] = entry
        self._named[entry.scope, entry.prefix_hash] = entry.handle
        self._lengths.setdefault(entry.scope, Counter())[len(entry.ids)] += 1
        self.bytes += entry.size

    def _drop(self, entry: Entry, why: str) -> None:
        del self._entries[entry.handle]
        self._named.pop((entry.scope, entry.prefix_hash), None)
        lengths = self._lengths[entry.scope]
        lengths[len(entry.ids)] -= 1
        if not lengths[len(entry.ids)]:
            del lengths[len(entry.ids)]
        if not lengths:
            del self._lengths[entry.scope]
        self.bytes -= entry.size
        self.counts[why] += 1

    def _bound(self) -> None:
        while len(self._entries) > self._max_entries or self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries.values())), "evicted")
