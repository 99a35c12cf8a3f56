"""Bytes of a block, and blocks that a hit needs, from vLLM's KV cache config."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_core.hit_rule import blocks_of_window

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group that takes part in prefix caching."""

    block_size: int
    """Tokens per block."""
    window: int | None
    """Last tokens that a hit needs in this group; None is all of them."""

    def needed(self, tokens: int) -> int:
        """Blocks that a hit on ``tokens`` tokens needs."""
        blocks = tokens // self.block_size
        return blocks if self.window is None else min(blocks, blocks_of_window(self.window, self.block_size))


def block_bytes(kv_cache_config: Any) -> int:
    """Bytes of one block on one device, over all of its layers; 0 where the model has no KV cache.

    From the allocations where the config lists them: a group of mixed layers shows the scheduler only one kind.
    """
    blocks = int(kv_cache_config.num_blocks)
    tensors = [one for one in kv_cache_config.kv_cache_tensors or () if not getattr(one, "host_resident", False)]
    if not tensors or not blocks:
        return max((_group_bytes(group) for group in kv_cache_config.kv_cache_groups), default=0)
    if hasattr(tensors[0], "layers"):  # since 0.31 all share one allocation, and each has its whole size
        return max(int(one.size) for one in tensors) // blocks
    return sum(int(one.size) for one in tensors) // blocks


def blocks_of(mib: int | None, bytes_of_block: int) -> int | None:
    """A bound in MiB as blocks, rounded down; None is no bound."""
    return None if mib is None else mib * MIB // bytes_of_block


def cached_groups(kv_cache_config: Any) -> list[Group]:
    """The groups that take part in prefix caching."""
    found = []
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        if getattr(spec, "prefix_cacheable", True) and "CrossAttention" not in type(spec).__name__:
            found.append(Group(int(spec.block_size), _window(spec)))
    return found


def needed(groups: Iterable[Group], tokens: int) -> int:
    """Blocks, over all groups, that a hit on ``tokens`` tokens needs."""
    return sum(group.needed(tokens) for group in groups)


def _group_bytes(group: Any) -> int:
    spec = group.kv_cache_spec
    layers = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)  # such a spec is a sum over its layers
    return int(spec.page_size_bytes) * layers


def _window(spec: Any) -> int | None:
    kinds = {kind.__name__ for kind in type(spec).__mro__}
    if "FullAttentionSpec" in kinds:
        return None
    return int(getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None) or 1)
