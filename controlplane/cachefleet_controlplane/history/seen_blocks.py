"""Which blocks were computed lately, and where: tells a prompt that is new from one whose blocks are gone.

A key commits to all blocks before it, so a prompt's keys need not all be kept: the first DENSE of them, then each
SPARSE-th, and its last. What is found of a prompt is at most SPARSE - 1 blocks too short (none in its first DENSE
blocks, and none where it goes on from an earlier prompt's end). Two generations are kept; once the younger one is full,
the older one is dropped. So what was computed last is remembered, between ``entries`` and twice as many keys, and
nothing is ever found that was not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.index.protocol import WorkerId
from cachefleet_controlplane.routing.reservations import KEY_BYTES

DENSE: Final = 32
SPARSE: Final = 8
ENTRIES: Final = 100_000
"""Of one generation; an entry takes about 100 bytes."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Where and when a prompt's blocks were computed last; ``at`` on the fleet's clock."""

    worker: WorkerId
    at: float


class SeenBlocks:
    """Remembers the blocks of answered prompts."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries
        self._young: dict[int, Computed] = {}
        self._old: dict[int, Computed] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def note(self, keys: bytes, computed: Computed, *, served: int) -> None:
        """A worker has answered a prompt with these packed keys, of whose blocks ``served`` came from its cache."""
        if len(keys) < KEY_BYTES:
            return
        kept, last = _kept(keys)
        known = _leading(kept, self._young)
        new = kept[min(known, _places(served)) :]
        self._young.update(dict.fromkeys(new, computed))
        self._young[last] = computed
        if len(self._young) >= self._entries:
            self._old, self._young = self._young, {}

    def longest(self, keys: bytes, *, before: float) -> tuple[int, Computed | None]:
        """How many of a prompt's first blocks had been computed ``before``, and where those at their end were."""
        if len(keys) < KEY_BYTES:
            return 0, None
        kept, _ = _kept(keys)
        low, high, found = 0, len(kept), None
        while low < high:
            middle = (low + high) // 2
            if (computed := self._at(kept[middle], before)) is not None:
                low, found = middle + 1, computed
            else:
                high = middle
        return self._beyond(keys, _blocks(low), before, found)

    def _beyond(self, keys: bytes, blocks: int, before: float, found: Computed | None) -> tuple[int, Computed | None]:
        """The end of an earlier prompt, between two blocks that are kept."""
        ends = memoryview(keys).cast("Q")
        for place in range(min(len(ends), blocks + SPARSE - 1), blocks, -1):
            if (computed := self._at(ends[place - 1], before)) is not None:
                return place, computed
        return blocks, found

    def _at(self, key: int, before: float) -> Computed | None:
        for generation in (self._young, self._old):
            computed = generation.get(key)
            if computed is not None and computed.at <= before:
                return computed
        return None


def _kept(keys: bytes) -> tuple[list[int], int]:
    """The keys of a prompt that are kept by their place, and its last."""
    ends = memoryview(keys).cast("Q")
    return [*ends[:DENSE], *ends[DENSE + SPARSE - 1 :: SPARSE]], ends[-1]


def _blocks(places: int) -> int:
    """Blocks up to the last of so many kept keys."""
    return places if places <= DENSE else DENSE + (places - DENSE) * SPARSE


def _places(blocks: int) -> int:
    """Kept keys of so many blocks."""
    return blocks if blocks <= DENSE else DENSE + (blocks - DENSE) // SPARSE


def _leading(kept: Sequence[int], generation: dict[int, Computed]) -> int:
    """How many of the first kept keys are in a generation, where each that is there has all before it there, too."""
    low, high = 0, len(kept)
    while low < high:
        middle = (low + high) // 2
        if kept[middle] in generation:
            low = middle + 1
        else:
            high = middle
    return low
