"""Remembered keys are the keys that would be computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.rendering.key_cache import SEGMENT_BLOCKS, KeyCache
from cachefleet_core.block_keys import BlockKey, BlockKeyer, Namespace

SIZE = 2
KEYERS = [
    BlockKeyer(b"k" * 32, Namespace("c", salt), SIZE, lookahead) for salt in ("a", "b") for lookahead in (0, 1, 3)
]
# Prompts that share beginnings of several lengths, up to three segments and a bit.
PROMPTS = st.tuples(st.integers(0, 3 * SEGMENT_BLOCKS * SIZE + 3), st.lists(st.integers(0, 3), max_size=200)).map(
    lambda parts: [7] * parts[0] + parts[1]
)


@given(st.lists(st.tuples(st.sampled_from(KEYERS), PROMPTS), max_size=6), st.sampled_from([1, 2, 100]))
def test_keys_are_those_of_the_keyer(asked: list[tuple[BlockKeyer, list[int]]], limit: int) -> None:
    cache = KeyCache(limit)
    for keyer, ids in asked:
        assert cache.keys(keyer, ids) == keyer.packed_keys(ids)
        assert len(cache._known) <= limit


def test_only_what_is_new_is_computed() -> None:
    computed: list[int] = []

    class Counting(BlockKeyer):
        def keys(self, tokens: object, *rest: object) -> list[BlockKey]:
            computed.append(len(tokens))  # type: ignore[arg-type]
            return super().keys(tokens, *rest)  # type: ignore[arg-type]

    keyer, cache = Counting(b"k" * 32, Namespace("c"), SIZE), KeyCache()
    old = [1] * (2 * SEGMENT_BLOCKS * SIZE)
    cache.keys(keyer, old)
    cache.keys(keyer, [*old, 2, 3, 4])
    assert computed == [len(old), 3]


@pytest.mark.parametrize("ids", [[-1] * 1000, [2**32] * 1000])
def test_ids_that_are_none_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="token ids must be"):
        KeyCache().keys(KEYERS[0], ids)
