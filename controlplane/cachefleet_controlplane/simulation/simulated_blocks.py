"""The block pool of an engine as vLLM keeps it, by block keys alone: what is cached, in use, idle and evicted. Pure.

A freed block that holds a key stays findable, and is evicted when its turn comes: least recently used first, the tail
of a prompt before its head, blank blocks before all. With a budget at most so many idle blocks stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import cachefleet_native

from cachefleet_core.block_keys import NO_PARENT, pack_keys
from cachefleet_core.report_frames import Operation, Removed, Stored

BLANK: Final = 0
"""In place of a block's key."""


class Block:
    """A block, the key of what it holds, and how many requests use it."""

    __slots__ = ("key", "references")

    def __init__(self) -> None:
        self.key = BLANK
        self.references = 0


class SimulatedBlocks:
    """Callers check ``free`` before ``allocate``."""

    def __init__(self, blocks: int, budget: int | None = None) -> None:
        """``budget`` bounds the idle blocks that are kept; None keeps all."""
        self.total = blocks
        self._budget = budget
        self._blank = blocks
        self._idle: OrderedDict[Block, None] = OrderedDict()
        self._cached: dict[int, list[Block]] = {}
        self._digest = cachefleet_native.Digest()
        self.digest = self._digest.value
        """Of the keys held at the last ``take``, as a report has it."""
        self.held = 0
        """How many these were."""
        self._operations: list[Operation] = []
        self._run: list[int] = []
        """Keys of one operation that is not over."""
        self._parent: int = NO_PARENT
        self._removing = False

    @property
    def free(self) -> int:
        """Blocks that may be handed out, idle ones included."""
        return self._blank + len(self._idle)

    @property
    def idle(self) -> int:
        """Blocks kept for reuse and used by nobody."""
        return len(self._idle)

    def lookup(self, keys: Sequence[int], limit: int) -> list[Block]:
        """The longest run of cached blocks from the start, at most ``limit``."""
        found: list[Block] = []
        for key in keys[:limit]:
            copies = self._cached.get(key)
            if copies is None:
                break
            found.append(copies[0])
        return found

    def touch(self, blocks: Iterable[Block]) -> None:
        """Use cached blocks once more."""
        for block in blocks:
            if block.references == 0:
                del self._idle[block]
            block.references += 1

    def allocate(self, count: int) -> list[Block]:
        """Blocks for one user, evicting what was used longest ago."""
        found = []
        for _ in range(count):
            if self._blank:
                self._blank -= 1
                block = Block()
            else:
                block = self._evict()
            block.references = 1
            found.append(block)
        return found

    def store(self, blocks: Sequence[Block], keys: Sequence[int], parent: int) -> None:
        """Cache blocks that have just become full; ``parent`` is the key before the first."""
        for block, key in zip(blocks, keys, strict=True):
            block.key = key
            copies = self._cached.get(key)
            if copies is None:
                self._cached[key] = [block]
                self._digest.add((key,))
                self._stored(parent, key)
            else:
                copies.append(block)
            parent = key

    def release(self, blocks: Sequence[Block]) -> None:
        """Give back a request's blocks, in its order."""
        for block in reversed(blocks):
            block.references -= 1
            if block.references:
                continue
            if block.key == BLANK:
                self._blank += 1
            else:
                self._idle[block] = None
        while self._budget is not None and len(self._idle) > self._budget:
            self._evict()
            self._blank += 1

    def take(self) -> list[Operation]:
        """The changes since the last call, in order."""
        self._settle()
        operations, self._operations = self._operations, []
        if operations:
            self.digest, self.held = self._digest.value, len(self._cached)
        return operations

    def _evict(self) -> Block:
        block, _ = self._idle.popitem(last=False)
        key, block.key = block.key, BLANK
        copies = self._cached[key]
        copies.remove(block)
        if not copies:
            del self._cached[key]
            self._digest.remove((key,))
            self._removed(key)
        return block

    def _stored(self, parent: int, key: int) -> None:
        if self._removing or not self._run or self._run[-1] != parent:
            self._settle()
            self._removing, self._parent = False, parent
        self._run.append(key)

    def _removed(self, key: int) -> None:
        if not self._removing:
            self._settle()
            self._removing = True
        self._run.append(key)

    def _settle(self) -> None:
        if self._run:
            keys = pack_keys(self._run)
            self._operations.append(Removed(keys) if self._removing else Stored(self._parent, keys))
            self._run = []
