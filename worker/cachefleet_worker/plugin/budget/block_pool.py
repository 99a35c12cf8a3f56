"""Connects the budget to vLLM's block pool: observes its methods, carries out evictions.

The pool object that the scheduler made gets a subclass of its own class when the plugin starts: each method is vLLM's,
followed by a callback of the budget. After a fault in a callback there are no more callbacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import Any, Final, Protocol

from cachefleet_worker.plugin.budget.chain_lru import ChainOrder
from cachefleet_worker.plugin.budget.kv_groups import Group, needed
from cachefleet_worker.plugin.budget.lru import BlockOrder

WATCH: Final = "_cachefleet_budget"
"""Attribute of a watched object that holds its Watch."""
POOL_METHODS: Final = ("free_blocks", "touch", "get_new_blocks", "evict_blocks", "reset_prefix_cache")
POOL_INTERNALS: Final = ("_maybe_evict_cached_block", "free_block_queue", "blocks")
QUEUE_METHODS: Final = ("remove", "prepend_n")
NUMBER: Final = attrgetter("block_id")
MANAGER_METHODS: Final = ("free", "pop_blocks_for_free", "allocate_slots", "remove_skipped_blocks")


class Order(Protocol):
    """What both eviction orders have in common."""

    limit: int | None

    def __len__(self) -> int: ...
    def gone(self, blocks: Collection[int]) -> None: ...
    def clear(self) -> None: ...
    def resize(self, limit: int | None) -> list[int]: ...


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

    def resize(self, limit: int | None) -> None:
        """Set the bound, in blocks, and evict down to it at once."""
        self.note(self._evict_for, limit)

    def recount(self) -> int:
        """Number of idle cached blocks, counted over every block of the pool."""
        return sum(1 for block in self._pool.blocks if not block.ref_cnt and block.block_hash is not None)

    def freed(self, blocks: list[Any]) -> None:
        """Blocks were freed, in this order; some may still be in use by other requests."""
        raise NotImplementedError

    def touched(self, blocks: Iterable[Any]) -> None:
        """Blocks are used by one more request."""
        raise NotImplementedError

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

    def _evict_for(self, limit: int | None) -> None:
        self._evict(self.order.resize(limit))

    def _evict(self, victims: list[int]) -> None:
        """Drop cached blocks and put them at the head of the free queue."""
        pool = self._pool
        queue, read = pool.free_block_queue, getattr(pool, "_reuse_watchers", ())
        for number in victims:
            block = pool.blocks[number]
            if block.ref_cnt:
                continue
            self._counts["evicted"] += bool(pool._maybe_evict_cached_block(block))  # noqa: SLF001 - the public one is watched
            if number not in read:  # a freed block that a transfer still reads should be reused last
                queue.remove(block)
                queue.prepend_n([block])


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
        self.order.touched([block.block_id for block in blocks if not block.is_null], request)

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

    def enter(self, request: str, tokens: int) -> None:
        """Attribute the pool's calls from here on to ``request``, of ``tokens`` tokens."""
        self._running = (request, tokens)

    def leave(self) -> None:
        """Attribute the pool's calls to no request."""
        self._running = None


@cache
def watched_pool(base: Any) -> type:
    """A block pool class that reports blocks freed, used again, allocated, evicted and cleared."""

    class WatchedBlockPool(base):  # type: ignore[misc]
        def free_blocks(self, ordered_blocks: Any, *args: Any, **kwargs: Any) -> None:
            blocks = list(ordered_blocks)
            super().free_blocks(blocks, *args, **kwargs)
            watch = self.__dict__[WATCH]
            watch.note(watch.freed, blocks)

        def touch(self, blocks: Any, *args: Any, **kwargs: Any) -> None:
            super().touch(blocks, *args, **kwargs)
            watch = self.__dict__[WATCH]
            watch.note(watch.touched, blocks)

        def get_new_blocks(self, *args: Any, **kwargs: Any) -> Any:
            blocks = super().get_new_blocks(*args, **kwargs)
            watch = self.__dict__[WATCH]
            watch.note(watch.gone, blocks)
            return blocks

        def evict_blocks(self, block_ids: Any, *args: Any, **kwargs: Any) -> None:
            super().evict_blocks(block_ids, *args, **kwargs)
            watch = self.__dict__[WATCH]
            watch.note(watch.order.gone, block_ids)

        def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
            done = super().reset_prefix_cache(*args, **kwargs)
            watch = self.__dict__[WATCH]
            if done:
                watch.note(watch.order.clear)
            return done

    return _with_unpin(WatchedBlockPool) if hasattr(base, "unpin_blocks") else WatchedBlockPool


def _with_unpin(base: Any) -> type:
    """Adds vLLM's ``unpin_blocks`` (0.30 and later): blocks returned while a transfer still reads them."""

    class UnpinningBlockPool(base):  # type: ignore[misc]
        def unpin_blocks(self, blocks: Any, *args: Any, **kwargs: Any) -> None:
            blocks = list(blocks)
            super().unpin_blocks(blocks, *args, **kwargs)
            watch = self.__dict__[WATCH]
            watch.note(watch.freed, blocks)

    return UnpinningBlockPool


@cache
def watched_manager(base: Any) -> type:
    """A KV cache manager class that reports for which request it calls the pool."""

    class WatchedKVCacheManager(base):  # type: ignore[misc]
        def free(self, request: Any) -> None:
            with self.__dict__[WATCH].closing(request.request_id):
                super().free(request)

        def pop_blocks_for_free(self, request: Any) -> Any:
            blocks = super().pop_blocks_for_free(request)
            watch = self.__dict__[WATCH]
            watch.note(watch.deferred, request.request_id, blocks)
            return blocks

        def allocate_slots(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            watch = self.__dict__[WATCH]
            watch.enter(request.request_id, request.num_tokens)
            try:
                return super().allocate_slots(request, *args, **kwargs)
            finally:
                watch.leave()

        def remove_skipped_blocks(
            self, request_id: str, processed_computed_tokens: int, *args: Any, **kwargs: Any
        ) -> None:
            watch = self.__dict__[WATCH]
            watch.enter(request_id, processed_computed_tokens)
            try:
                super().remove_skipped_blocks(request_id, processed_computed_tokens, *args, **kwargs)
            finally:
                watch.leave()

    return WatchedKVCacheManager
