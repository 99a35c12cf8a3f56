"""Which blocks were computed lately, and where: tells a prompt that is new from one whose blocks are gone.

A key commits to all blocks before it, so a few of a prompt's keys are enough: those at ``places``, four in each
doubling of its length, the last of what was served from cache, and the prompt's last. What is found of a prompt is too
short by less than a quarter, and exact where it goes on from an earlier prompt's end, ends where an earlier one was no
longer served, or shares no more than 8 blocks. The table has a fixed size and each entry one slot: a new entry replaces
what was there, so that of entries noted before SLOTS others a third is left. Whole keys are kept, so nothing is found
that was not computed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES

SLOTS: Final = 1 << 18
"""Of 16 bytes each: enough for some 8,000 prompts of 8,192 tokens in blocks of 16."""
MAX_WORKERS: Final = 4096
"""Workers that are told apart; with one more the table begins anew."""
_A_DOUBLING: Final = 4
_MILLISECONDS: Final = 1000
_TIME_BITS: Final = 48


def places(most: int) -> list[int]:
    """The numbers of blocks, up to ``most``, at which keys are kept: 1 to 8, then each 2nd, each 4th, ..."""
    found, step = list(range(1, _A_DOUBLING)), 1
    while (at := found[-1] + step) <= most:
        found.append(at)
        step = max(1, (1 << (at.bit_length() - 1)) // _A_DOUBLING)
    return found


_PLACES: Final = places(1 << 20)


@dataclass(frozen=True, slots=True)
class Computed:
    """Where and when a prompt's blocks were computed last; ``at`` on the fleet's clock, to the millisecond."""

    worker: WorkerId
    at: float


class SeenBlocks:
    """Remembers the blocks of answered prompts."""

    def __init__(self, slots: int = SLOTS) -> None:
        """``slots`` is a power of two."""
        self._mask = 2 * slots - 2
        self._table = array("Q", bytes(2 * slots * KEY_BYTES))
        """Key and what ``_packed`` makes, by turns."""
        self._workers: dict[WorkerId, int] = {}
        self._names: list[WorkerId] = []

    def note(self, keys: bytes, computed: Computed, *, served: int) -> None:
        """A worker has answered a prompt with these packed keys, of whose blocks ``served`` came from its cache.

        What was served stays where it was computed, and is noted only at its end, if it is not known any more.
        """
        if len(keys) < KEY_BYTES:
            return
        ends, table, mask = memoryview(keys).cast("Q"), self._table, self._mask
        value = self._packed(computed)
        first = bisect_right(_PLACES, served)
        for place in _PLACES[first : bisect_right(_PLACES, len(ends))]:
            key = ends[place - 1]
            slot = key & mask
            table[slot] = key
            table[slot + 1] = value
        if served < len(ends):
            self._set(ends[-1], value)
        if served and table[(last := ends[min(served, len(ends)) - 1]) & mask] != last:
            self._set(last, value)

    def longest(self, keys: bytes, *, before: float) -> tuple[int, Computed | None]:
        """How many of a prompt's first blocks had been computed ``before``, and where those at their end were."""
        ends, table, mask = memoryview(keys).cast("Q"), self._table, self._mask
        if ends and (found := self._at(ends, len(ends), before)):
            return len(ends), found
        for place in reversed(_PLACES[: bisect_right(_PLACES, len(ends))]):
            key = ends[place - 1]
            if table[key & mask] == key and (found := self._at(ends, place, before)):
                return self._beyond(ends, place, before) or (place, found)
        return 0, None

    def _beyond(self, ends: memoryview[int], place: int, before: float) -> tuple[int, Computed] | None:
        """The end of an earlier prompt, between a place and the next one."""
        following, table, mask = _PLACES[bisect_right(_PLACES, place)], self._table, self._mask
        for blocks, key in enumerate(ends[place : following - 1], place + 1):
            if table[key & mask] == key and (found := self._at(ends, blocks, before)):
                return blocks, found
        return None

    def _at(self, ends: memoryview[int], blocks: int, before: float) -> Computed | None:
        key = ends[blocks - 1]
        slot = key & self._mask
        if self._table[slot] != key:
            return None
        value = self._table[slot + 1]
        at = (value & ((1 << _TIME_BITS) - 1)) / _MILLISECONDS
        return Computed(self._names[value >> _TIME_BITS], at) if at <= before else None

    def _set(self, key: int, value: int) -> None:
        slot = key & self._mask
        self._table[slot], self._table[slot + 1] = key, value

    def _packed(self, computed: Computed) -> int:
        """Where and when, in 64 bits."""
        number = self._workers.get(computed.worker)
        if number is None:
            if len(self._workers) >= MAX_WORKERS:
                self._workers.clear()
                self._names.clear()
                self._table = array("Q", bytes(len(self._table) * KEY_BYTES))
            number = self._workers[computed.worker] = len(self._workers)
            self._names.append(computed.worker)
        return number << _TIME_BITS | int(computed.at * _MILLISECONDS)
