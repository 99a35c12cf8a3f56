"""The block pool of a vLLM engine with one full-attention group, as 0.32 does it.

Block 0 is the null block and never handed out. A freed block with a hash stays findable and is evicted when its turn
in the free queue comes: least recently used first, the tail of a chain before its head. A full block is cached even
if an equal one is there already, so a hash may have several blocks; losing any of them is reported as a removal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from tests.fakes.chain import Link
from tests.fakes.kv_events import Cleared, Event, Removed, Stored


class Block:
    __slots__ = ("id", "link", "references")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.references = 0
        self.link: Link | None = None


class BlockPool:
    """Raises nothing on its own: callers check ``free`` before ``allocate``."""

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self.budget: int | None = None
        """Idle cached blocks that are kept; the worker plugin's addition, None as in stock vLLM."""
        self._free: OrderedDict[int, Block] = OrderedDict((i, Block(i)) for i in range(1, num_blocks))
        self._cached: dict[bytes, list[Block]] = {}
        self._events: list[Event] = []

    @property
    def free(self) -> int:
        """Blocks that may be handed out, idle cached ones included."""
        return len(self._free)

    @property
    def idle(self) -> int:
        """Blocks held for reuse and used by nobody."""
        return sum(block.link is not None for block in self._free.values())

    @property
    def usage(self) -> float:
        usable = self.num_blocks - 1
        return 1.0 - len(self._free) / usable if usable else 0.0

    def held(self) -> list[Link]:
        """The distinct cached blocks, in no order."""
        return [blocks[0].link for blocks in self._cached.values() if blocks[0].link is not None]

    def copies(self) -> int:
        """Cached blocks, duplicates counted."""
        return sum(len(blocks) for blocks in self._cached.values())

    def lookup(self, links: Sequence[Link], limit: int) -> list[Block]:
        """The longest run of cached blocks from the start, at most ``limit``."""
        out: list[Block] = []
        if not self.caching:
            return out
        for link in links[:limit]:
            found = self._cached.get(link.digest)
            if not found:
                break
            out.append(found[0])
        return out

    def touch(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.references == 0:
                del self._free[block.id]
            block.references += 1

    def allocate(self, count: int) -> list[Block]:
        out = []
        for _ in range(count):
            _, block = self._free.popitem(last=False)
            self._evict(block)
            block.references = 1
            out.append(block)
        return out

    def store(self, blocks: Sequence[Block], links: Sequence[Link], session_id: str | None = None) -> None:
        """Cache blocks that have just become full; ``links`` names their content."""
        if not self.caching or not blocks:
            return
        for block, link in zip(blocks, links, strict=True):
            block.link = link
            self._cached.setdefault(link.digest, []).append(block)
        self._events.append(Stored(tuple(links), self.block_size, session_id))

    def report(self, links: Sequence[Link], session_id: str | None = None) -> None:
        """Tell again of blocks that are cached (``kv_cache_report_mode`` "full")."""
        if links:
            self._events.append(Stored(tuple(links), self.block_size, session_id))

    def release(self, blocks: Sequence[Block]) -> None:
        """Give back a request's blocks, in its order."""
        first: list[Block] = []
        last: list[Block] = []
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                (last if block.link is not None else first).append(block)
        for block in reversed(first):
            self._free[block.id] = block
            self._free.move_to_end(block.id, last=False)
        for block in last:
            self._free[block.id] = block
        self._enforce()

    def bound(self, budget: int | None) -> int:
        """Keep at most ``budget`` idle cached blocks from now on; how many of them went at once."""
        self.budget = budget
        return self._enforce()

    def flush(self, meant: Callable[[Link], bool], *, dry_run: bool) -> tuple[int, int]:
        """Forget the idle cached blocks that are meant; how many these are, and how many more are in use."""
        found = [block for copies in self._cached.values() for block in copies if block.link and meant(block.link)]
        idle = [block for block in found if not block.references]
        for block in () if dry_run else idle:
            self._evict(block)
            self._free.move_to_end(block.id, last=False)
        return len(idle), len(found) - len(idle)

    def clear(self) -> bool:
        """Forget all cached blocks; refused while any block is in use."""
        if len(self._free) != self.num_blocks - 1:
            return False
        for block in self._free.values():
            block.link = None
        self._cached.clear()
        self._events.append(Cleared())
        return True

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _enforce(self) -> int:
        """Blocks beyond the budget go to the front of the queue without their content, oldest first."""
        if self.budget is None:
            return 0
        surplus = [block for block in self._free.values() if block.link is not None]
        surplus = surplus[: max(0, len(surplus) - self.budget)]
        for block in surplus:
            self._evict(block)
            self._free.move_to_end(block.id, last=False)
        return len(surplus)

    def _evict(self, block: Block) -> None:
        link, block.link = block.link, None
        if link is None:
            return
        copies = self._cached[link.digest]
        copies.remove(block)
        if not copies:
            del self._cached[link.digest]
        self._events.append(Removed(link))
