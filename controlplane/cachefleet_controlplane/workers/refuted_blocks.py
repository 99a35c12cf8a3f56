"""Blocks that the index says are held and that an engine has just denied. Pure.

The engine is right. A refuted block is not removed from the index, whose digest would then differ from the agent's: it
is not counted on for SECONDS, which is longer than a report takes. An entry is about one block of one worker, and so
about the prompts that contain it; it ends early where a prompt with that block was computed there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.index.worker_id import WorkerId

SECONDS: Final = 10.0
MAX_REFUTED: Final = 1024
"""Entries of all workers; the oldest are dropped first."""
_KEY_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class _Refuted:
    held: int
    until: float


class RefutedBlocks:
    """Refuted blocks of all workers. ``clock`` is monotonic, in seconds; keys are packed by ``blocks.pack_keys``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[tuple[WorkerId, int, bytes], _Refuted] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, worker: WorkerId, keys: bytes, *, lacking: int, held: int) -> None:
        """A worker lacks block number ``lacking`` of a prompt; only the first ``held`` of its blocks are counted on.

        Nothing happens where the prompt has no such block.
        """
        key = _key(keys, lacking)
        if not key:
            return
        self._known.pop((worker, lacking, key), None)
        self._known[worker, lacking, key] = _Refuted(min(held, lacking), self._clock() + SECONDS)
        while len(self._known) > MAX_REFUTED:
            self._known.popitem(last=False)

    def bounds(self, keys: bytes) -> dict[WorkerId, int]:
        """The most of a prompt's blocks to count on, by worker; workers without refuted blocks are left out."""
        self._expire()
        found: dict[WorkerId, int] = {}
        for (worker, lacking, key), doubt in self._known.items():
            if _key(keys, lacking) == key:
                found[worker] = min(doubt.held, found.get(worker, doubt.held))
        return found

    def settle(self, worker: WorkerId, keys: bytes) -> None:
        """A worker has computed a prompt and holds its blocks: drop their entries."""
        if self._known:
            over = [(at, n, key) for at, n, key in self._known if at == worker and _key(keys, n) == key]
            for known in over:
                del self._known[known]

    def _expire(self) -> None:
        now = self._clock() if self._known else 0.0
        while self._known and next(iter(self._known.values())).until <= now:
            self._known.popitem(last=False)


def _key(keys: bytes, number: int) -> bytes:
    return keys[_KEY_BYTES * number : _KEY_BYTES * (number + 1)]
