"""Makes events of groups with a window or a state tell which blocks they are of.

vLLM announces of such a group only the blocks that it keeps, beside the tokens of all. Where full attention's events
name the same hashes that is enough. In a model without full attention nobody could tell which tokens a hash is of:
there the events of one group, the *named* one, list every block, followed by the removal of those that are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from cachefleet_core.hit_rule import FULL_KINDS, CacheGroup

POOL_METHODS: Final = ("cache_full_blocks", "emit_cached_block_events", "cached_block_hash_to_block", "kv_event_queue")


class WindowEvents:
    """Stands before two methods of vLLM's block pool; ``guard`` wraps what is done besides vLLM's own work."""

    def __init__(
        self, pool: Any, windows: frozenset[int], named: int | None, guard: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._pool = pool
        self._windows = windows
        self._named = named
        self._guard = guard
        pool.emit_cached_block_events = self._again
        if named is not None:
            pool.cache_full_blocks = self._cached

    def _again(self, request: Any, num_cached_blocks: int, block_size: int, kv_cache_group_id: int) -> None:
        """VLLM announces reused blocks anew where a request asks for that: of a window also those it has not."""
        if kv_cache_group_id not in self._windows:
            method = type(self._pool).emit_cached_block_events
            method(self._pool, request, num_cached_blocks, block_size, kv_cache_group_id)

    def _cached(self, *args: Any, **call: Any) -> None:
        queue = self._pool.kv_event_queue
        before = len(queue)
        type(self._pool).cache_full_blocks(self._pool, *args, **call)
        if len(queue) > before and not args and call["kv_cache_group_id"] == self._named:
            with self._guard():
                self._list_all(queue[-1], call)

    def _list_all(self, event: Any, call: dict[str, Any]) -> None:
        """Have a store list every block of its range, and announce the removal of those not cached."""
        group: int = call["kv_cache_group_id"]
        from vllm.distributed.kv_events import BlockRemoved  # noqa: PLC0415 - vLLM is there when this runs
        from vllm.v1.core import kv_cache_utils as utils  # noqa: PLC0415

        start, end, size = call["num_cached_blocks"], call["num_full_blocks"], call["block_size"]
        if type(event).__name__ != "BlockStored" or len(event.block_hashes) == end - start:
            return
        pool = self._pool
        hashes = utils.resolve_block_hashes(call["request"].block_hashes, pool.hash_block_size, size)
        listed = [hashes[at] for at in range(start, end)]
        find, with_group = pool.cached_block_hash_to_block.get_one_block, utils.make_block_hash_with_group_id
        gone = [each for each in listed if find(with_group(each, group)) is None]
        event.block_hashes = [utils.maybe_convert_block_hash(each) for each in listed]
        event.extra_keys = self._extra_keys(utils, call["request"], start, end, size)
        if getattr(event, "lookahead_token_ids", None) is not None:
            ends = range((start + 1) * size, end * size + 1, size)
            event.lookahead_token_ids = [pool._lookahead_token_ids(call["request"], each) for each in ends]  # noqa: SLF001
        if gone:
            removed = [utils.maybe_convert_block_hash(each) for each in gone]
            pool.kv_event_queue.append(BlockRemoved(removed, medium=event.medium, group_idx=group))

    def _extra_keys(self, utils: Any, request: Any, start: int, end: int, size: int) -> Any:
        """The rest of each block's identity, as vLLM's events have it: from 0.33 on the pool makes it."""
        of_block = getattr(self._pool, "_generate_event_extra_keys", utils.generate_block_hash_extra_keys)
        extras, at = [], 0
        for block in range(start, end):
            keys, at = of_block(request, block * size, (block + 1) * size, at)
            extras.append(keys)
        return getattr(utils, "to_event_extra_keys", list)(extras)


def install(pool: Any, groups: Sequence[CacheGroup], guard: Callable[[], AbstractContextManager[Any]]) -> int | None:
    """Put it before a pool of these groups; the named group, None where full attention names the blocks."""
    windows = frozenset(group.index for group in groups if group.kind not in FULL_KINDS)
    named = min(windows) if windows and len(windows) == len(groups) else None
    if windows and all(hasattr(pool, name) for name in POOL_METHODS):
        WindowEvents(pool, windows, named, guard)
    return named
