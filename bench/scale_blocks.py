"""What a fake worker holds and reports: blocks that come and go steadily, made beforehand so that they cost little.

Blocks are numbered in the order of time. At any moment a worker holds the last ``held`` of them. A unit of them is a
new prompt of PROMPT blocks, one chain, and then one block of an answer for each of the ANSWER conversations before it,
which is a chain of its own: as vLLM's events are while it computes prompts between steps that generate. Keys are
random, and come again after a whole period, long after they were removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from cachefleet_core.block_keys import NO_PARENT, BlockKey
from cachefleet_core.hit_rule import PLAIN, HitRule
from cachefleet_core.native import empty_digest
from cachefleet_core.report_frames import Operation, Removed, Stored

PROMPT: Final = 63
ANSWER: Final = 25
UNIT: Final = PROMPT + ANSWER
SPARE_UNITS: Final = 64
"""Units of a period that are not held: more than change between two frames."""
KEY_BYTES: Final = 8
CONVERSATION: Final = np.array([*range(PROMPT), *((1 + place) * UNIT + PROMPT + place for place in range(ANSWER))])
"""The numbers of a conversation's blocks, less that of its unit's first."""


class FakeResidents:
    """Stands for ``Residents`` in a report stream: no engine, no hashes, the same operations and digest.

    ``pinned`` are packed keys of one prompt that is held all the time.
    """

    rule: HitRule = PLAIN
    unknown = ""
    unkeyed = False

    def __init__(self, held: int, pinned: bytes = b"") -> None:
        self._window = held
        self._period = (held // UNIT + SPARE_UNITS) * UNIT
        self._keys = os.urandom(self._period * KEY_BYTES)
        self._pinned = pinned
        self._digest = empty_digest()
        self._reported = self.now = held
        """The number after the last block that was stored: as reported, and as it is now."""
        self._digest.add(pinned)
        for packed in self._packed(0, held):
            self._digest.add(packed)

    @property
    def held(self) -> int:
        """Blocks held, as reported."""
        return self._window + len(self._pinned) // KEY_BYTES

    @property
    def digest(self) -> int:
        """Their digest."""
        return self._digest.value

    def take(self) -> list[Operation]:
        """What was stored and removed since the last call."""
        before, self._reported = self._reported, self.now
        operations: list[Operation] = []
        for packed in self._packed(before - self._window, self.now - self._window):
            self._digest.remove(packed)
            operations.append(Removed(packed))
        for parent, first, last in runs(before, self.now):
            for packed in self._packed(first, last):
                self._digest.add(packed)
                operations.append(Stored(NO_PARENT if parent is None else self._key(parent), packed))
        return operations

    def snapshot(self) -> list[Stored]:
        """Everything held, as a chain for each conversation."""
        first, last = self._reported - self._window, self._reported
        units = np.arange(first // UNIT - ANSWER, last // UNIT + 1)
        numbers = units[:, None] * UNIT + CONVERSATION
        keys = np.frombuffer(self._keys, "<u8")[numbers % self._period]
        begins = np.sum(numbers < first, axis=1)
        ends = np.sum(numbers < last, axis=1)
        chains = [_chain(*each) for each in zip(keys, begins, ends, strict=True) if each[1] < each[2]]
        return [*([Stored(NO_PARENT, self._pinned)] if self._pinned else ()), *chains]

    def forget(self) -> None:
        """Never called: no engine is withdrawn here."""
        raise NotImplementedError

    def _key(self, number: int) -> BlockKey:
        at = number % self._period * KEY_BYTES
        return BlockKey(int.from_bytes(self._keys[at : at + KEY_BYTES], "little"))

    def _packed(self, first: int, last: int) -> Iterator[bytes]:
        """The keys of these numbers, in one piece, or two where the period ends between them."""
        start, count = first % self._period, last - first
        end = min(start + count, self._period)
        if count > 0:
            yield self._keys[start * KEY_BYTES : end * KEY_BYTES]
        if (over := start + count - end) > 0:
            yield self._keys[: over * KEY_BYTES]


def runs(first: int, last: int) -> Iterator[tuple[int | None, int, int]]:
    """The chains that blocks are stored as: the number before each (None where it begins a prompt), and its bounds."""
    number = first
    while number < last:
        unit, place = divmod(number, UNIT)
        if place < PROMPT:
            end = min(last, unit * UNIT + PROMPT)
            yield (number - 1 if place else None), number, end
            number = end
        else:
            yield parent_of_answer(unit, place - PROMPT), number, number + 1
            number += 1


def parent_of_answer(unit: int, place: int) -> int:
    """The block before the answer's block at ``place`` in a unit: that of the same conversation, one unit earlier."""
    return (unit - 1) * UNIT + PROMPT - 1 + place


def _chain(keys: Any, begin: int, end: int) -> Stored:
    """The blocks of a conversation from ``begin`` to before ``end``."""
    return Stored(BlockKey(int(keys[begin - 1])) if begin else NO_PARENT, keys[begin:end].tobytes())
