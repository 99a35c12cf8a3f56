"""Subclasses of vLLM's block pool and KV cache manager that tell a Watch what they do.

The pool object that the scheduler made gets a subclass of its own class when the plugin starts: each method is vLLM's,
followed by a callback of the budget.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cachefleet_worker.plugin.budget.block_pool import WATCH


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

        def cache_full_blocks(
            self, request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, *args: Any, **kwargs: Any
        ) -> None:
            super().cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
            watch = self.__dict__[WATCH]
            watch.note(watch.cached, request, blocks[num_cached_blocks:num_full_blocks])

        def get_new_blocks(self, num_blocks: int, *args: Any, **kwargs: Any) -> Any:
            watch = self.__dict__[WATCH]
            watch.note(watch.make_room, num_blocks)
            blocks = super().get_new_blocks(num_blocks, *args, **kwargs)
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
            watch.enter(request.request_id, request.num_tokens, request)
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
