"""What fake workers hold and report: blocks that come and go steadily, as frames made beforehand.

Blocks are numbered in the order of time. At any moment a worker holds the last ``held`` of them. A unit of them is a
new prompt of PROMPT blocks, one chain, and then one block of an answer for each of the ANSWER conversations before it,
which is a chain of its own: as vLLM's events are while it computes prompts between steps that generate. Keys are
random, and come again after a whole period, long after they were removed.

So frames come again as well, but for their sequence numbers. A ``Cycle`` has those of a period, which are alike for all
workers but for the keys in them; ``FakeBlocks`` are one worker's, with its keys written into them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cachefleet_core.block_keys import NO_PARENT, BlockKey
from cachefleet_core.native import empty_digest
from cachefleet_core.report_frames import Delta, Operation, Removed, Snapshot, Stored, encode

PROMPT: Final = 63
ANSWER: Final = 25
UNIT: Final = PROMPT + ANSWER
SPARE_UNITS: Final = 64
"""Units of a period that are not held: more than change between two frames."""
KEY_BYTES: Final = 8
FIRST_SEQUENCE: Final = 1 << 40
"""Numbers of 8 bytes in every frame."""
CONVERSATION: Final = np.array([*range(PROMPT), *((1 + place) * UNIT + PROMPT + place for place in range(ANSWER))])
"""The numbers of a conversation's blocks, less that of its unit's first."""
_BYTES: Final = np.arange(KEY_BYTES)


@dataclass(frozen=True)
class Frame:
    """Where a frame is in a cycle, and its sequence number in it."""

    begin: int
    sequence: int
    end: int


class Cycle:
    """The WebSocket messages of Deltas in which ``changed`` blocks are stored, and as many removed, for a period."""

    def __init__(self, held: int, changed: int) -> None:
        self.held, self.changed = held, changed
        units = changed // math.gcd(changed, UNIT)
        self.period = math.ceil((held // UNIT + SPARE_UNITS) / units) * units * UNIT
        self._template = random_keys(self.period)
        self.frames: list[Frame] = []
        places: tuple[list[int], list[int]] = ([], [])
        parents: tuple[list[int], list[int]] = ([], [])
        content = bytearray()
        for first in range(0, self.period, changed):
            self._add(content, first, places, parents)
        self._content = np.frombuffer(bytes(content), np.uint8)
        self._places, self._numbers = (np.array(each) for each in places)
        self._parents, self._parent_numbers = (np.array(each) for each in parents)

    def content(self, keys: Any) -> bytearray:
        """All messages with these keys, each in the places of its number."""
        content = self._content.copy()
        content[self._places[:, None] + _BYTES] = keys[self._numbers].view(np.uint8).reshape(-1, KEY_BYTES)
        parents = keys[self._parent_numbers].astype(">u8")
        content[self._parents[:, None] + _BYTES] = parents.view(np.uint8).reshape(-1, KEY_BYTES)
        return bytearray(content)

    def _add(self, content: bytearray, first: int, places: Sequence[list[int]], parents: Sequence[list[int]]) -> None:
        """One more message, and where it has the keys of which numbers."""
        keys = self._template
        operations = changes(keys, first, first + self.held, self.changed)
        message = message_of(encode(Delta(sequence=FIRST_SEQUENCE, operations=tuple(operations))))
        base, at = len(content), 0
        for number, count, parent in _numbers(first, first + self.held, self.changed, self.period):
            if parent is not None:
                at = message.index(int(keys[parent % self.period]).to_bytes(KEY_BYTES, "big"), at)
                parents[0].append(base + at)
                parents[1].append(parent % self.period)
            at = message.index(keys[number : number + count].tobytes(), at)
            places[0].extend(range(base + at, base + at + count * KEY_BYTES, KEY_BYTES))
            places[1].extend(range(number, number + count))
        sequence = message.index(FIRST_SEQUENCE.to_bytes(KEY_BYTES, "big"))
        self.frames.append(Frame(base, base + sequence, base + len(message)))
        content += message


class FakeBlocks:
    """One worker's: the next frame, the digest of what is held, a snapshot.

    ``pinned`` are packed keys of one prompt that is held all the time.
    """

    def __init__(self, cycle: Cycle, pinned: bytes = b"") -> None:
        self._cycle = cycle
        self._keys = random_keys(cycle.period)
        self._pinned = pinned
        self._content = memoryview(cycle.content(self._keys))
        self._digests = list(self._digests_after())
        self._at = 0
        """Frames of the cycle that were taken."""
        self.sequence = FIRST_SEQUENCE

    @property
    def held(self) -> int:
        """Blocks held."""
        return self._cycle.held + len(self._pinned) // KEY_BYTES

    @property
    def digest(self) -> int:
        """Their digest."""
        return self._digests[self._at]

    def take(self) -> memoryview:
        """The message that says what changes next; valid until the cycle has come round."""
        frame = self._cycle.frames[self._at]
        self._at = (self._at + 1) % len(self._cycle.frames)
        self.sequence += 1
        self._content[frame.sequence : frame.sequence + KEY_BYTES] = self.sequence.to_bytes(KEY_BYTES, "big")
        return self._content[frame.begin : frame.end]

    def snapshot(self) -> Snapshot:
        """Everything held, as a chain for each conversation."""
        first = self._at * self._cycle.changed
        last = first + self._cycle.held
        units = np.arange(first // UNIT - ANSWER, last // UNIT + 1)
        numbers = units[:, None] * UNIT + CONVERSATION
        keys = self._keys[numbers % self._cycle.period]
        begins = np.sum(numbers < first, axis=1)
        ends = np.sum(numbers < last, axis=1)
        chains = [_chain(*each) for each in zip(keys, begins, ends, strict=True) if each[1] < each[2]]
        pinned = [Stored(NO_PARENT, self._pinned)] if self._pinned else []
        return Snapshot(sequence=self.sequence, part=0, last=True, chains=(*pinned, *chains))

    def _digests_after(self) -> Iterator[int]:
        """That after each number of frames of the cycle."""
        digest, cycle = empty_digest(), self._cycle
        digest.add(self._pinned)
        for packed in pieces(self._keys, 0, cycle.held):
            digest.add(packed)
        for number in range(len(cycle.frames)):
            yield digest.value
            first = number * cycle.changed
            for packed in pieces(self._keys, first, first + cycle.changed):
                digest.remove(packed)
            for packed in pieces(self._keys, first + cycle.held, first + cycle.held + cycle.changed):
                digest.add(packed)


def random_keys(count: int) -> Any:
    """So many, of 8 bytes in every frame."""
    return np.frombuffer(os.urandom(count * KEY_BYTES), "<u8") | np.uint64(1 << 63)


def message_of(frame: bytes) -> bytes:
    """A frame as a binary message of a WebSocket's client, with a mask that changes nothing."""
    size = len(frame)
    if size < 126:
        head = bytes([0x82, 0x80 | size])
    elif size < 1 << 16:
        head = bytes([0x82, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x82, 0x80 | 127]) + size.to_bytes(8, "big")
    return head + bytes(4) + frame


def changes(keys: Any, first: int, last: int, count: int) -> Iterator[Operation]:
    """``count`` blocks from ``first`` on leave, and as many from ``last`` on come."""
    for packed in pieces(keys, first, first + count):
        yield Removed(packed)
    for parent, begin, end in runs(last, last + count):
        before = NO_PARENT if parent is None else BlockKey(int(keys[parent % len(keys)]))
        for packed in pieces(keys, begin, end):
            yield Stored(before, packed)


def _numbers(first: int, last: int, count: int, period: int) -> Iterator[tuple[int, int, int | None]]:
    """The same as numbers: that of the first key of each operation, how many there are, and their parent's."""
    for begin, end in _wrapped(first, first + count, period):
        yield begin, end - begin, None
    for parent, start, stop in runs(last, last + count):
        for begin, end in _wrapped(start, stop, period):
            yield begin, end - begin, parent


def pieces(keys: Any, first: int, last: int) -> Iterator[bytes]:
    """The keys of these numbers, packed, in one piece, or two where the period ends between them."""
    for begin, end in _wrapped(first, last, len(keys)):
        yield keys[begin:end].tobytes()


def _wrapped(first: int, last: int, period: int) -> Iterator[tuple[int, int]]:
    start, count = first % period, last - first
    end = min(start + count, period)
    if count > 0:
        yield start, end
    if (over := start + count - end) > 0:
        yield 0, over


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
