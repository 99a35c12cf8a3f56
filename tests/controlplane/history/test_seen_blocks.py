"""What was computed before is found, as far as promised; what was not is never found; the memory is bounded."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.history.seen_blocks import MAX_WORKERS, Computed, SeenBlocks, places
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_core.block_keys import BlockKeyer, Namespace, pack_keys

A, B = WorkerId("p/a#0"), WorkerId("p/b#0")
KEYER = BlockKeyer(b"k" * 32, Namespace("c", ""), 1)
NEVER = 0, None


def chain(*ids: int) -> bytes:
    """Keys of a prompt with one token a block."""
    return pack_keys(KEYER.keys(list(ids)))


def long(blocks: int, *, seed: int = 1) -> bytes:
    return chain(*random.Random(seed).choices(range(1000), k=blocks))


def test_nothing_is_found_of_what_was_never_computed() -> None:
    seen = SeenBlocks()
    assert seen.longest(long(600), before=9) == NEVER
    seen.note(long(600), Computed(A, 1), served=0)
    assert seen.longest(long(600, seed=2), before=9) == NEVER
    assert seen.longest(b"", before=9) == NEVER


def test_a_prompt_is_found_whole_with_where_it_was_computed() -> None:
    seen = SeenBlocks()
    for blocks in (1, 8, 9, 10, 511, 512, 513, 601):
        seen.note(long(blocks, seed=blocks), Computed(A, 1), served=0)
        assert seen.longest(long(blocks, seed=blocks), before=1) == (blocks, Computed(A, 1))


def test_a_prompt_that_goes_on_finds_the_end_of_the_one_before() -> None:
    seen = SeenBlocks()
    for blocks in range(1, 80):
        before = long(blocks, seed=blocks)
        seen.note(before, Computed(A, 1), served=0)
        assert seen.longest(before + long(30, seed=99), before=1)[0] == blocks


@given(st.integers(1, 200), st.integers(0, 200))
def test_what_two_prompts_share_is_found_but_for_a_few_blocks(shared: int, more: int) -> None:
    seen, common = SeenBlocks(), [7] * shared
    seen.note(chain(*common, *[8] * more, 9), Computed(A, 1), served=0)
    found, _ = seen.longest(chain(*common, *[10] * 50), before=1)
    assert found <= shared
    assert shared - found < (shared / 4 if shared > 8 else 1)


def test_what_was_computed_later_is_not_what_was_there_before() -> None:
    """Of two requests at the same time the one that ends first has evicted nothing."""
    seen = SeenBlocks()
    seen.note(long(40), Computed(A, 5), served=0)
    assert seen.longest(long(40), before=4) == NEVER
    assert seen.longest(long(40), before=5) == (40, Computed(A, 5))


def test_what_is_computed_again_is_there_from_then_on_and_what_was_served_stays_where_it_was() -> None:
    seen, keys = SeenBlocks(), long(24)
    seen.note(keys, Computed(A, 1), served=0)
    seen.note(keys, Computed(B, 2), served=16)
    assert seen.longest(keys[: 8 * 16], before=3) == (16, Computed(A, 1))
    assert seen.longest(keys, before=3) == (24, Computed(B, 2))


def test_what_was_served_once_is_found_to_its_end() -> None:
    seen, common = SeenBlocks(), [7] * 61
    for number in range(2):
        seen.note(chain(*common, *[number] * 50), Computed(A, number), served=61 * number)
    assert seen.longest(chain(*common, *[9] * 50), before=2) == (61, Computed(A, 1))


def test_the_memory_is_bounded_and_keeps_most_of_what_came_last() -> None:
    seen, prompts = SeenBlocks(slots=1024), [long(10, seed=number) for number in range(500)]
    size = len(seen._table)
    for number, keys in enumerate(prompts):
        seen.note(keys, Computed(A, number), served=0)
    found = [seen.longest(keys, before=999)[0] for keys in prompts]
    assert len(seen._table) == size
    assert sum(blocks == 10 for blocks in found[-20:]) >= 16
    assert sum(found[:250]) < sum(found[-250:]) / 2


def test_what_is_served_all_the_time_is_remembered() -> None:
    """It computes nothing, and is not forgotten for that."""
    seen, often = SeenBlocks(slots=256), long(10, seed=-1)
    for number in range(200):
        seen.note(often, Computed(A, number), served=10)
        seen.note(long(10, seed=number), Computed(A, number), served=0)
        seen.note(often, Computed(A, number), served=10)
        assert seen.longest(often, before=999)[0] == 10


def test_workers_are_bounded() -> None:
    seen = SeenBlocks(slots=64)
    for number in range(MAX_WORKERS + 1):
        seen.note(long(1), Computed(WorkerId(f"p/w{number}#0"), number), served=0)
    assert seen.longest(long(1), before=1e9) == (1, Computed(WorkerId(f"p/w{MAX_WORKERS}#0"), MAX_WORKERS))


def test_places_are_four_in_each_doubling() -> None:
    assert places(70) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]
