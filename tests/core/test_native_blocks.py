"""The native keyer against the vectors and against its twin."""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.blocks import NO_PARENT, BlockKey, BlockKeyer, Namespace, pack_keys
from tests.core import block_key_formula as formula

pytest.importorskip("cachefleet_native")
import cachefleet_native

from cachefleet_core.native_blocks import NativeBlockKeyer

INDEX_KEY = b"k" * 32
VECTORS: dict[str, Any] = json.loads(formula.VECTORS.read_text(encoding="utf-8"))
TOKEN = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 255, 256, 2**30 - 1, 2**30, 2**32 - 1])
TOKENS = st.lists(TOKEN, max_size=300)
CONTAINERS: dict[str, Callable[[list[int]], Sequence[int]]] = {
    "list": list,
    "tuple": tuple,
    "array": lambda tokens: array("I", tokens),
    "memoryview": lambda tokens: memoryview(array("I", tokens)),
    "wide array": lambda tokens: array("Q", tokens),
}


def pair(size: int) -> tuple[BlockKeyer, BlockKeyer]:
    namespace = Namespace("sha256:c", "salt", "lora")
    return NativeBlockKeyer(INDEX_KEY, namespace, size), BlockKeyer(INDEX_KEY, namespace, size)


@pytest.mark.parametrize("chain", VECTORS["chains"], ids="{namespace}-{prompt}-{block_size}".format_map)
def test_keys_reproduce_the_vectors(chain: dict[str, Any]) -> None:
    namespace = Namespace(**VECTORS["namespaces"][chain["namespace"]])
    made = NativeBlockKeyer(bytes.fromhex(VECTORS["index_key"]), namespace, chain["block_size"])

    assert [f"{key:016x}" for key in made.keys(VECTORS["prompts"][chain["prompt"]])] == chain["keys"]


@given(TOKENS, st.integers(1, 70) | st.just(16), st.sampled_from(sorted(CONTAINERS)), st.data())
def test_keys_are_those_of_the_twin(tokens: list[int], size: int, container: str, data: st.DataObject) -> None:
    native, twin = pair(size)
    parent = BlockKey(data.draw(st.just(NO_PARENT) | st.integers(1, 2**64 - 1)))
    position = data.draw(st.integers(0, 2**40))

    assert native.keys(CONTAINERS[container](tokens), parent, position) == twin.keys(tokens, parent, position)
    assert native.packed_keys(CONTAINERS[container](tokens)) == pack_keys(twin.keys(tokens))
    assert packed_ids_keys(native, tokens) == pack_keys(twin.keys(tokens))


def packed_ids_keys(keyer: BlockKeyer, tokens: list[int]) -> bytes:
    """By way of packed ids."""
    assert isinstance(keyer, NativeBlockKeyer)
    return keyer._native.packed_ids(struct.pack(f"<{len(tokens)}I", *tokens))


@pytest.mark.parametrize("bad", [-1, 2**32, 2**64, 2**90, "1", None, 1.0, b"1"])
@pytest.mark.parametrize("place", [0, 7, 15])
def test_what_is_no_token_id_is_refused_like_by_the_twin(bad: Any, place: int) -> None:
    tokens: list[Any] = [5] * 20
    tokens[place] = bad
    for keyer in pair(16):
        with pytest.raises(ValueError, match="token ids must be integers"):
            keyer.keys(tokens)


def test_what_is_not_in_a_full_block_is_not_looked_at() -> None:
    tokens: list[Any] = [5] * 16 + ["x"]
    assert len({tuple(keyer.keys(tokens)) for keyer in pair(16)}) == 1


def test_a_block_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="block size"):
        NativeBlockKeyer(INDEX_KEY, Namespace("c"), 0)
    with pytest.raises(ValueError, match="block size"):
        cachefleet_native.Keyer([1, 2, 3, 4], 2**40)


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="a layout not known yet")
def test_ints_are_read_where_they_lie() -> None:
    assert cachefleet_native.INTS_READ_DIRECTLY
