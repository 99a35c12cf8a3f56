"""The choice of single blocks to evict, and the arithmetic of the bound: pure, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachefleet_worker.plugin.budget.block_eviction import BlockOrder
from cachefleet_worker.plugin.budget.kv_groups import Group, block_bytes, blocks_of, needed


def order(limit: int | None) -> BlockOrder:
    blocks = BlockOrder()
    blocks.resize(limit)
    return blocks


def test_the_least_recently_freed_goes_first() -> None:
    blocks = order(4)
    assert blocks.freed([2, 1], []) == []
    assert blocks.freed([5, 4, 3], []) == [2]
    assert blocks.resize(1) == [1, 5, 4]
    assert 3 in blocks


def test_a_touched_block_is_not_idle_and_then_the_most_recent() -> None:
    blocks = order(3)
    blocks.freed([1], [])
    blocks.freed([2], [])
    blocks.touched([1])
    assert len(blocks) == 1
    blocks.freed([1], [])
    assert blocks.freed([4, 3], []) == [2]


def test_a_chain_over_the_bound_loses_only_what_it_cached() -> None:
    blocks = order(3)
    blocks.freed([2, 1], [])
    blocks.touched([1, 2])
    assert blocks.freed([5, 4, 3, 2, 1], []) == [5, 4, 3]
    assert len(blocks) == 2


def test_blocks_still_in_use_count_for_the_size_of_a_chain() -> None:
    assert order(3).freed([9, 8], [1, 2]) == [9, 8]


def test_gone_blocks_have_no_standing() -> None:
    blocks = order(2)
    blocks.freed([1], [])
    blocks.touched([1])
    blocks.gone([1])
    assert blocks.freed([3, 2, 1], []) == [3, 2, 1]


def test_a_clear_forgets_all() -> None:
    blocks = order(None)
    blocks.freed([1, 2], [])
    blocks.clear()
    assert len(blocks) == 0
    assert blocks.resize(0) == []


def test_the_bound_is_rounded_down_to_blocks() -> None:
    assert blocks_of(1, 300_000) == 3
    assert blocks_of(0, 300_000) == 0
    assert blocks_of(None, 300_000) is None


def config(tensors: list[Any], blocks: int = 10, *groups: Any) -> Any:
    return SimpleNamespace(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=list(groups))


def group(page: int, layers: int, **fields: Any) -> Any:
    return SimpleNamespace(
        layer_names=["x"] * layers, kv_cache_spec=SimpleNamespace(page_size_bytes=page, block_size=16, **fields)
    )


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        pytest.param(config([], 10, group(64, 2), group(32, 3)), 128, id="groups overlay"),
        pytest.param(config([], 10, group(64, 2, kv_cache_specs={})), 64, id="summed already"),
        pytest.param(config([SimpleNamespace(size=640, shared_by=[])] * 2), 128, id="an allocation each"),
        pytest.param(config([SimpleNamespace(size=640, layers=[])] * 2), 64, id="one allocation"),
        pytest.param(
            config([SimpleNamespace(size=640, layers=[]), SimpleNamespace(size=990, layers=[], host_resident=True)]),
            64,
            id="not the host's",
        ),
        pytest.param(config([]), 0, id="no KV cache"),
        pytest.param(config([], 10, group(48, 2, dtype="acme_fp6", cache_dtype_str="acme_fp6")), 96, id="a new dtype"),
    ],
)
def test_block_bytes(described: Any, expected: int) -> None:
    assert block_bytes(described) == expected


def test_a_hit_needs_all_of_a_full_group_and_the_window_of_others() -> None:
    groups = [Group(16, None), Group(16, 100), Group(16, 1)]
    assert needed(groups, 320) == 20 + 7 + 1
    assert needed(groups, 15) == 0
    assert needed([Group(16, 96)], 320) == 6, "a window includes the token that follows"
    assert needed([Group(16, 98)], 320) == 7
