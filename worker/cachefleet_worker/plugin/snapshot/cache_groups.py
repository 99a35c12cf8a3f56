"""The KV cache groups of vLLM that take part in prefix caching, as agents are told of them."""

from __future__ import annotations

from typing import Any

from cachefleet_core.hit_rule import FULL_KINDS, CacheGroup


def cache_groups(manager: Any) -> list[CacheGroup]:
    """The groups of a KV cache manager; none where this vLLM does not tell their kinds.

    A kind with words after it is one of which the rule of hits is not known.
    """
    kinds = getattr(manager, "kv_cache_event_metadata", ())
    coordinator: Any = getattr(manager, "coordinator", None)
    groups = [
        CacheGroup(index, str(kind), window, int(coordinator.single_type_managers[index].block_size))
        for index, (kind, window) in enumerate(kinds)
        if getattr(manager.kv_cache_config.kv_cache_groups[index].kv_cache_spec, "prefix_cacheable", True)
    ]
    if odd := _oddity(coordinator, groups):
        return [CacheGroup(each.index, f"{each.kind} {odd}", each.window, each.block_size) for each in groups]
    return groups


def _oddity(coordinator: Any, groups: list[CacheGroup]) -> str:
    """What makes hits on several groups differ from the known rule; "" for nothing."""
    if all(group.kind in FULL_KINDS for group in groups):
        return ""
    if getattr(coordinator, "eagle_group_ids", ()):
        return "with speculative decoding"
    return "with hits inside of blocks" if getattr(coordinator, "enable_partial_hash_hits", False) else ""
