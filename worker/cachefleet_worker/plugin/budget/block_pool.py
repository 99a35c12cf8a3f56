"""Connects the budget to vLLM's block pool: what its methods tell (watched_classes.py), and evictions.

After a fault in a callback there are no more callbacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Final, Protocol

from cachefleet_worker.plugin.budget.block_eviction import BlockOrder
from cachefleet_worker.plugin.budget.chain_eviction import ChainOrder
from cachefleet_worker.plugin.budget.kv_groups import Group, needed
from cachefleet_worker.plugin.budget.owners import keep_seconds, owner_of
from cachefleet_worker.plugin.live_policy import Shares

WATCH: Final = "_cachefleet_budget"
"""Attribute of a watched object that holds its Watch."""
POOL_METHODS: Final = (
    "free_blocks",
    "touch",
    "get_new_blocks",
    "evict_blocks",
    "reset_prefix_cache",
    "cache_full_blocks",
)
POOL_INTERNALS: Final = ("_maybe_evict_cached_block", "free_block_queue", "blocks")
QUEUE_METHODS: Final = ("remove", "prepend_n")
NUMBER: Final = attrgetter("block_id")
MANAGER_METHODS: Final = ("free", "pop_blocks_for_free", "allocate_slots", "remove_skipped_blocks")


class Order(Protocol):
    """What both eviction orders have in common."""

    limit: int | None
    shares: Shares
    breaches: Counter[str]

    @property
    def biased(self) -> bool: ...
    def __len__(self) -> int: ...
    def owners(self) -> dict[str, int]: ...
    def owner_of(self, block: int) -> str: ...
    def beside(self, blocks: Collection[int]) -> set[int]: ...
    def take(self, count: int) -> list[int]: ...
    def gone(self, blocks: Collection[int]) -> None: ...
    def clear(self) -> None: ...
    def resize(self, limit: int | None, shares: Shares) -> list[int]: ...


class Watch:
    """Callbacks of one pool's methods, and evictions in it; subclasses differ in the eviction order."""

    order: Order

    def __init__(self, pool: Any, counts: Counter[str], on_fault: Callable[[Exception], None]) -> None:
        self._pool = pool
        self._counts = counts
        self._on_fault = on_fault
        self.on = True

    def attach(self, target: Any, watched: Callable[[Any], type]) -> None:
        """Replace the class of ``target`` by ``watched`` of it. Permanent: vLLM may hold bound methods."""
        setattr(target, WATCH, self)
        target.__class__ = watched(type(target))

    def resize(self, limit: int | None, shares: Shares) -> None:
        """Set the bound, in blocks, and its shares, and evict down to it at once."""
        self.note(self._evict_for, limit, shares)

    def flush(self, blocks: list[int]) -> None:
        """Evict these idle cached blocks, whatever the bound."""
        self.note(self._flush, blocks)

    def recount(self) -> int:
        """Number of idle cached blocks, counted over every block of the pool."""
        return sum(1 for block in self._pool.blocks if not block.ref_cnt and block.block_hash is not None)

    def freed(self, blocks: list[Any]) -> None:
        """Blocks were freed, in this order; some may still be in use by other requests."""
        raise NotImplementedError

    def cached(self, request: Any, blocks: list[Any]) -> None:
        """Blocks were computed for a request, and are cached now."""
        raise NotImplementedError

    def touched(self, blocks: Iterable[Any]) -> None:
        """Blocks are used by one more request."""
        raise NotImplementedError

    def make_room(self, count: int) -> None:
        """So many blocks are about to be allocated: where others are to go first than vLLM would take, evict them."""
        if self.order.biased:
            blank = self._pool.get_num_free_blocks() - len(self.order)
            if count > blank:
                self._evict(self.order.take(count - blank))

    def gone(self, blocks: Iterable[Any]) -> None:
        """Blocks are no longer cached, or were allocated anew."""
        self.order.gone(list(map(NUMBER, blocks)))

    def note(self, action: Callable[..., None], *args: Any) -> None:
        """Run a callback; a fault in it ends all callbacks and is reported to ``on_fault``."""
        if not self.on:
            return
        try:
            action(*args)
        except Exception as error:  # noqa: BLE001 - the fault boundary of every hook: plugin_faults.py logs it
            self.on = False
            self._on_fault(error)

    def _evict_for(self, limit: int | None, shares: Shares) -> None:
        self._evict(self.order.resize(limit, shares))

    def _flush(self, blocks: list[int]) -> None:
        self.order.gone(blocks)
        self._evict(blocks, "flushed")

    def _evict(self, victims: list[int], count: str = "evicted") -> None:
        """Drop cached blocks and put them at the head of the free queue."""
        pool = self._pool
        queue, read = pool.free_block_queue, getattr(pool, "_reuse_watchers", ())
        for number in victims:
            block = pool.blocks[number]
            if block.ref_cnt:
                continue
            self._counts[count] += bool(pool._maybe_evict_cached_block(block))  # noqa: SLF001 - the public one is watched
            if number not in read:  # a freed block that a transfer still reads should be reused last
                queue.remove(block)
                queue.prepend_n([block])


def _asked(request: Any) -> tuple[str, int]:
    """Owner of a request's blocks, and how many seconds it asks that its prompt be kept."""
    parameters = request.sampling_params
    return owner_of(request.cache_salt), keep_seconds(parameters.extra_args if parameters is not None else None)


def _cached(blocks: list[Any]) -> tuple[list[int], list[int]]:
    """The cached ones of blocks just freed: idle ones, and those still in use."""
    idle = [block.block_id for block in blocks if not block.ref_cnt and block.block_hash is not None]
    shared = [block.block_id for block in blocks if block.ref_cnt and block.block_hash is not None]
    return idle, shared


class BlockWatch(Watch):
    """For models with one full-attention group."""

    def __init__(self, pool: Any, counts: Counter[str], on_fault: Callable[[Exception], None]) -> None:
        super().__init__(pool, counts, on_fault)
        self.order: BlockOrder = BlockOrder()

    def freed(self, blocks: list[Any]) -> None:
        """Blocks were freed, in this order; evicts what then exceeds the bound."""
        if victims := self.order.freed(*_cached(blocks)):
            self._evict(victims)

    def cached(self, request: Any, blocks: list[Any]) -> None:
        """Blocks were computed for a request, and are cached now."""
        self.order.cached([block.block_id for block in blocks], *_asked(request))

    def touched(self, blocks: Iterable[Any]) -> None:
        """Blocks are used by one more request, so they are not idle."""
        self.order.touched(map(NUMBER, blocks))


class ChainWatch(Watch):
    """For models whose hits need blocks of several groups; it also knows for which request the pool is called."""

    def __init__(
        self, pool: Any, counts: Counter[str], on_fault: Callable[[Exception], None], groups: list[Group]
    ) -> None:
        super().__init__(pool, counts, on_fault)
        self.order: ChainOrder = ChainOrder()
        self._groups = groups
        self._running: tuple[str, int] | None = None
        """Request and its token count, while the pool is called for it."""
        self._allocating: Any = None
        """The request itself, while blocks are allocated for it."""
        self._closing: list[Any] | None = None
        """Blocks freed so far of the request that ends; None while none does."""

    def freed(self, blocks: list[Any]) -> None:
        """Blocks were freed: by a request that ends or slides its window, or outside of any."""
        if self._closing is not None:
            self._closing += blocks
            return
        idle, shared = _cached(blocks)
        if self._running is not None:
            request, tokens = self._running
            victims = self.order.slid(request, idle, lambda: needed(self._groups, tokens)) if idle else []
        else:
            victims = self.order.freed([block.block_id for block in blocks], idle, shared)
        if victims:
            self._evict(victims)

    def touched(self, blocks: Iterable[Any]) -> None:
        """Blocks are used by the request that the pool is called for."""
        request = self._running[0] if self._running is not None else None
        if self._allocating is not None:
            self._begin(self._allocating)
        self.order.touched([block.block_id for block in blocks if not block.is_null], request)

    def cached(self, request: Any, blocks: list[Any]) -> None:  # noqa: ARG002 - a chain is a request's whatever its blocks
        """Blocks were computed for a request, and are cached now."""
        self._begin(request)

    def _begin(self, request: Any) -> None:
        self.order.begun(request.request_id, *_asked(request))

    @contextmanager
    def closing(self, request: str) -> Any:
        """Collect everything freed inside as the blocks of ``request``, which ends."""
        self._closing = []
        try:
            yield
        finally:
            blocks, self._closing = self._closing, None
            self.note(self._closed, request, blocks)

    def _closed(self, request: str, blocks: list[Any]) -> None:
        self._evict(self.order.closed(request, *_cached(blocks)))

    def deferred(self, request: str, blocks: list[Any]) -> None:
        """A request ended whose blocks are freed later, in reverse order."""
        self.order.deferred(request, [block.block_id for block in reversed(blocks)])

    def enter(self, request: str, tokens: int, allocating: Any = None) -> None:
        """Attribute the pool's calls from here on to ``request``, of ``tokens`` tokens."""
        self._running, self._allocating = (request, tokens), allocating

    def leave(self) -> None:
        """Attribute the pool's calls to no request."""
        self._running = self._allocating = None
