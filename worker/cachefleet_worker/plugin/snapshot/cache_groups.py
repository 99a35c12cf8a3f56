"""The KV cache groups of vLLM that take part in prefix caching, as agents are told of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

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
        return [replace(each, kind=f"{each.kind} {odd}") for each in groups]
    return [replace(each, dropped=int(_drafts(coordinator))) for each in groups]


def hash_lookahead(pool: Any) -> int:
    """Tokens after a block that its hash covers: 0 before vLLM 0.33, and where it is switched off."""
    return int(getattr(pool, "num_hash_lookahead_tokens", 0))


def _drafts(coordinator: Any) -> bool:
    """Whether the last block of a hit is computed again, for a draft model.

    From 0.33 on groups stay flagged where hashes look ahead, which makes that needless.
    """
    groups = getattr(coordinator, "drop_eagle_group_ids", None)
    return bool(getattr(coordinator, "eagle_group_ids", ()) if groups is None else groups)


def _oddity(coordinator: Any, groups: list[CacheGroup]) -> str:
    """What makes hits on several groups differ from the known rule; "" for nothing."""
    full = all(group.kind in FULL_KINDS for group in groups)
    if _drafts(coordinator) and not (full and len(groups) == 1):
        return "with speculative decoding"
    if full:
        return ""
    return "with hits inside of blocks" if getattr(coordinator, "enable_partial_hash_hits", False) else ""
