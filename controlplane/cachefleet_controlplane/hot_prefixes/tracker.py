"""Which prefixes of prompts are hot: shared by several requests lately. New workers cache them before their first
request.

A prefix is hot where requests share it: as far as the blocks of two prompts are equal. Block keys tell that without
token ids, since each commits to all before it, so every request counts, whichever rung gave its keys. Ids are fetched
only for prefixes found to be shared (``note`` asks for them), and are all that is kept besides keys: in memory,
bounded, never written to disk. Heat is a count of requests that halves every ``half_life_seconds``.

A conversation's next prompt shares its whole last one. It is recognised by the key at which that one ended, however
many prompts came in between. Its shared prefix grows: as long as no other conversation uses it, it stays one entry,
with its heat, and with the ids of its beginning until the rest is learnt. Pure.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from types import MappingProxyType
from typing import Final

from cachefleet_native import shared_blocks

from cachefleet_controlplane.hot_prefixes.hot_prefix import HotBounds, HotPrefix, Line, TrackedPrefix, WantedPrefix
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES
from cachefleet_core.tenancy import TenantId
from cachefleet_runtime.lru import LruMap

ID_BYTES: Final = 4
NOBODY: Final[Mapping[TenantId, int]] = MappingProxyType({})
"""To whom nothing is promised."""
RECENT_PROMPTS: Final = 8
"""Prompts with one first block that a new one is compared with."""
MAX_ENDS: Final = 8192
"""Prompts of which only the last key is kept."""
SCANNED_BLOCKS: Final = 512
"""How many blocks back from its end a prompt is searched for the end of an earlier one."""
PROMPT_BYTES: Final = 700
"""Memory of a kept prompt besides its keys, in bytes."""
_FIRST_USES: Final = 2
"""Requests that a prefix takes to be known."""
RETRY_SECONDS: Final = 60.0
"""Pause before ids that could not be fetched are asked for again."""


@dataclass(slots=True)
class _Entry:
    line: Line
    first: bytes
    last: bytes
    blocks: int
    level: float
    """Its heat at time 0 as a power of two, time being counted in half-lives: the same order at any time."""
    ids: bytes = b""
    """Only of its beginning where ``learnt`` is not set."""
    learnt: bool = False
    uses: int = 0
    """Requests for it since it was added."""
    asked_at: float = float("-inf")
    saved: int = 0
    """Blocks of it that were served from caches."""


@dataclass(slots=True)
class _Recent:
    """The last prompts that begin with one block, and the prefixes known among them, by their last key."""

    prompts: deque[bytes] = field(default_factory=deque)
    known: set[bytes] = field(default_factory=set)


class HotPrefixes:
    """Tracks prefixes. Half of the bytes are for keys, half for ids; the coldest or oldest are dropped first."""

    def __init__(self, bounds: HotBounds) -> None:
        self._bounds = bounds
        self._entries: dict[bytes, _Entry] = {}
        self._recent: OrderedDict[bytes, _Recent] = OrderedDict()
        self._ends: LruMap[int, None] = LruMap(MAX_ENDS)
        self._key_bytes = 0
        self._id_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes of ids and keys together."""
        return self._key_bytes + self._id_bytes

    def note(self, line: Line, keys: bytes, now: float, *, fetch: bool = True) -> WantedPrefix | None:
        """Count a request whose prompt has these packed keys.

        Returns its hottest prefix whose ids are to be fetched, if any, and only where it may ``fetch`` ids.
        """
        if len(keys) < KEY_BYTES or not self._bounds.entries:
            return None
        first = keys[:KEY_BYTES]
        recent = self._recent.setdefault(first, _Recent())
        self._recent.move_to_end(first)
        held = [key for key in recent.known if self._begins(keys, key)]
        for key in held:
            self._warm(self._entries[key], now)
        common = [shared_blocks(keys, prompt) for prompt in recent.prompts]
        shared = max(self._continued(keys), *common, 0)
        if shared and _key(keys, shared) not in recent.known:
            held = self._grow(held, self._add(line, keys, shared, now))
        self._remember(recent, keys, common)
        return self._wanted(held, now) if fetch else None

    def served(self, keys: bytes, blocks: int) -> None:
        """Of a prompt with these packed keys so many of the first blocks came from a cache."""
        recent = self._recent.get(keys[:KEY_BYTES])
        for key in recent.known if recent is not None else ():
            if self._begins(keys, key):
                self._entries[key].saved += min(blocks, self._entries[key].blocks)

    def tracked(self, now: float) -> list[TrackedPrefix]:
        """All prefixes, hottest first."""
        found = [
            TrackedPrefix(
                line=entry.line,
                first=entry.first,
                last=key,
                blocks=entry.blocks,
                requests=entry.uses + _FIRST_USES,
                heat=self._heat(entry, now),
                saved_blocks=entry.saved,
            )
            for key, entry in self._entries.items()
        ]
        return sorted(found, key=lambda one: (-one.heat, one.blocks))

    def learn(self, key: bytes, ids: bytes) -> None:
        """Keep the ids of a wanted prefix, b"" where they could not be fetched; ids that do not fit are dropped."""
        entry = self._entries.get(key)
        room = self._bounds.bytes // 2
        if entry is None or not ids or len(ids) > room:
            return
        self._id_bytes += len(ids) - len(entry.ids)
        entry.ids, entry.learnt = ids, True
        while self._id_bytes > room:
            others = (known for known, entry in self._entries.items() if known != key and entry.ids)
            self._drop(min(others, key=self._level_of))

    def hottest(
        self,
        serves: Callable[[Line], bool],
        now: float,
        *,
        tokens: int,
        most: int,
        promised: Mapping[TenantId, int] = NOBODY,
        wanted: Callable[[bytes, bytes], bool] = lambda _first, _last: True,
    ) -> list[HotPrefix]:
        """Prefixes with ids of the lines that a worker serves, hottest first: at most ``most``, with ``tokens`` in all.

        What a prefix has in common with a hotter one counts once, as it is cached once. Before all others come those of
        tenants to whom so many tokens are ``promised``, within these. ``wanted`` is asked by first and last key.
        """
        found = [entry for entry in self._entries.values() if entry.ids and serves(entry.line)]
        found = [entry for entry in found if wanted(entry.first, entry.last)]
        found.sort(key=lambda entry: (-entry.level, entry.blocks))
        chosen: list[_Entry] = []
        for tenant, room in promised.items():
            own = (entry for entry in found if entry.line.tenant == tenant)
            tokens -= _choose(own, chosen, tokens=min(room, tokens), most=most)
        _choose(found, chosen, tokens=tokens, most=most)
        return [HotPrefix(entry.line, entry.ids, self._heat(entry, now)) for entry in chosen]

    def keep(self, valid: Callable[[Line], bool]) -> None:
        """Drop prefixes of other lines: of a tenant that was deleted, a salt that was changed."""
        for key, entry in list(self._entries.items()):
            if not valid(entry.line):
                self._drop(key)

    def _begins(self, keys: bytes, key: bytes) -> bool:
        return _key(keys, self._entries[key].blocks) == key

    def _heat(self, entry: _Entry, now: float) -> float:
        return math.exp2(entry.level - now / self._bounds.half_life_seconds)

    def _level(self, heat: float, now: float) -> float:
        return math.log2(heat) + now / self._bounds.half_life_seconds

    def _warm(self, entry: _Entry, now: float) -> None:
        entry.level = self._level(self._heat(entry, now) + 1.0, now)
        entry.uses += 1

    def _add(self, line: Line, keys: bytes, blocks: int, now: float) -> bytes:
        """Add a prefix at the second request for it; both count."""
        while len(self._entries) >= self._bounds.entries:
            self._drop(min(self._entries, key=self._level_of))
        key, first = _key(keys, blocks), keys[:KEY_BYTES]
        self._entries[key] = _Entry(line, first, key, blocks, self._level(_FIRST_USES, now))
        self._recent[first].known.add(key)
        return key

    def _continued(self, keys: bytes) -> int:
        """Blocks of the longest earlier prompt that this one continues; keeps its own end."""
        ends = memoryview(keys)[-SCANNED_BLOCKS * KEY_BYTES :].cast("Q")
        beyond = next(compress(count(), map(self._ends.__contains__, reversed(ends))), None)
        self._ends.put(ends[-1], None)
        return 0 if beyond is None else len(keys) // KEY_BYTES - beyond

    def _grow(self, held: list[bytes], key: bytes) -> list[bytes]:
        """Let a new prefix replace the longest held one where nobody else has used that."""
        held = [known for known in held if known in self._entries]  # adding it may have dropped the coldest
        new, before = self._entries[key], max(held, key=lambda one: self._entries[one].blocks, default=None)
        if before is not None and self._entries[before].blocks < new.blocks and self._entries[before].uses == 1:
            old = self._entries[before]
            new.level, new.ids, new.saved = old.level, old.ids, old.saved
            self._drop(before)
            self._id_bytes += len(new.ids)
            held.remove(before)
        return [*held, key]

    def _level_of(self, key: bytes) -> float:
        return self._entries[key].level

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key)
        self._id_bytes -= len(entry.ids)
        if (recent := self._recent.get(entry.first)) is not None:
            recent.known.discard(key)

    def _remember(self, recent: _Recent, keys: bytes, common: Sequence[int]) -> None:
        """Keep a prompt, in place of one that it continues; ``common`` are the blocks it shares with each."""
        pairs = zip(recent.prompts, common, strict=True)
        covered = next((prompt for prompt, blocks in pairs if blocks * KEY_BYTES == len(prompt)), None)
        if covered is not None:
            recent.prompts.remove(covered)
        elif len(recent.prompts) >= RECENT_PROMPTS:
            covered = recent.prompts.popleft()
        recent.prompts.append(keys)
        self._key_bytes += _size(keys) - (0 if covered is None else _size(covered))
        while self._key_bytes > self._bounds.bytes // 2:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, oldest = self._recent.popitem(last=False)
        self._key_bytes -= sum(map(_size, oldest.prompts))
        for key in list(oldest.known):
            self._drop(key)

    def _wanted(self, keys: list[bytes], now: float) -> WantedPrefix | None:
        unlearnt = [
            key
            for key in keys
            if (entry := self._entries.get(key)) is not None
            and not entry.learnt
            and now - entry.asked_at >= RETRY_SECONDS
        ]
        key = max(unlearnt, key=self._level_of, default=None)
        if key is None:
            return None
        self._entries[key].asked_at = now
        return WantedPrefix(key, self._entries[key].blocks)


def _size(prompt: bytes) -> int:
    return PROMPT_BYTES + len(prompt)


def _key(keys: bytes, blocks: int) -> bytes:
    return keys[(blocks - 1) * KEY_BYTES : blocks * KEY_BYTES]


def _choose(entries: Iterable[_Entry], chosen: list[_Entry], *, tokens: int, most: int) -> int:
    """Add entries to the chosen ones, within these bounds; how many tokens they have beyond those."""
    room = tokens
    for entry in entries:
        new = (len(entry.ids) - max((_common(entry, other) for other in chosen), default=0)) // ID_BYTES
        if len(chosen) < most and 0 < new <= room:
            room -= new
            chosen.append(entry)
    return tokens - room


def _common(entry: _Entry, chosen: _Entry) -> int:
    """Bytes of ids in common; only of prefixes of each other, which is how prompts share."""
    if entry.line != chosen.line:
        return 0
    if entry.ids.startswith(chosen.ids):
        return len(chosen.ids)
    return len(entry.ids) if chosen.ids.startswith(entry.ids) else 0
