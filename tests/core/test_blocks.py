from __future__ import annotations

import json
import random
import sys
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core import blocks
from cachefleet_core.blocks import (
    NO_PARENT,
    BlockKey,
    BlockKeyer,
    Namespace,
    fold,
    pack_keys,
    splitmix64,
    unpack_keys,
)
from tests.core import block_key_formula as formula

INDEX_KEY = b"k" * 32
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80)
KEYS = st.integers(0, 2**64 - 1)
VECTORS: dict[str, Any] = json.loads(formula.VECTORS.read_text(encoding="utf-8"))


def keyer(block_size: int = 16, **namespace: str) -> BlockKeyer:
    return BlockKeyer(INDEX_KEY, Namespace(**({"contract": "sha256:c"} | namespace)), block_size)


def test_vectors_are_what_the_formula_says() -> None:
    assert formula.render() == formula.VECTORS.read_text(encoding="utf-8"), "run python -m tests.core.block_key_formula"


@pytest.mark.parametrize("chain", VECTORS["chains"], ids="{namespace}-{prompt}-{block_size}".format_map)
def test_keys_reproduce_the_vectors(chain: dict[str, Any]) -> None:
    namespace = Namespace(**VECTORS["namespaces"][chain["namespace"]])
    made = BlockKeyer(bytes.fromhex(VECTORS["index_key"]), namespace, chain["block_size"])

    assert [f"{key:016x}" for key in made.keys(VECTORS["prompts"][chain["prompt"]])] == chain["keys"]


@given(
    st.binary(min_size=1, max_size=64),
    st.fixed_dictionaries({"contract": st.text(), "salt": st.text(), "lora": st.text()}),
    st.integers(1, 40),
    TOKENS,
)
def test_keys_agree_with_the_formula_everywhere(
    index_key: bytes, namespace: dict[str, str], block_size: int, tokens: list[int]
) -> None:
    made = BlockKeyer(index_key, Namespace(**namespace), block_size).keys(tokens)

    assert made == formula.keys(index_key, namespace, block_size, tokens)


@given(KEYS, KEYS)
def test_fold_and_splitmix_agree_with_the_formula(a: int, b: int) -> None:
    assert fold(a, b) == formula.fold(a, b)
    assert splitmix64(a) == formula.splitmix64(a)


@given(TOKENS, st.integers(1, 20), st.data())
def test_a_chain_may_be_continued_from_any_of_its_keys(tokens: list[int], size: int, data: st.DataObject) -> None:
    made = keyer(size)
    whole = made.keys(tokens)
    cut = data.draw(st.integers(0, len(whole)))

    head = made.keys(tokens[: cut * size])
    rest = made.keys(tokens[cut * size :], head[-1] if head else NO_PARENT, cut)

    assert head + rest == whole


@given(TOKENS, st.integers(1, 20))
def test_only_full_blocks_have_keys(tokens: list[int], size: int) -> None:
    made = keyer(size).keys(tokens)

    assert len(made) == len(tokens) // size
    assert made == keyer(size).keys(tokens[: len(made) * size])
    assert NO_PARENT not in made


@given(st.lists(st.integers(0, 2**32 - 1), min_size=32, max_size=32), st.data())
def test_a_key_commits_to_every_token_before_it(tokens: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, 31))
    other = list(tokens)
    other[position] ^= 1

    before, after = keyer(4).keys(tokens), keyer(4).keys(other)

    assert before[: position // 4] == after[: position // 4]
    assert not set(before[position // 4 :]) & set(after[position // 4 :])


def test_equal_blocks_at_other_positions_have_other_keys() -> None:
    assert len(set(keyer(4).keys([7] * 400))) == 100


def test_keys_of_namespaces_are_unrelated() -> None:
    tokens = [random.Random(1).randrange(2**17) for _ in range(16 * 64)]
    made = [
        keyer(),
        keyer(salt="a"),
        keyer(salt="b"),
        keyer(lora="a"),
        keyer(contract="sha256:d"),
        keyer(contract="sha256:ca", salt=""),
        BlockKeyer(b"j" * 32, Namespace("sha256:c"), 16),
    ]
    chains = [one.keys(tokens) for one in made]
    keys = [key for chain in chains for key in chain]
    steps = {b - a for chain in chains for a, b in pairwise(chain)}

    assert len(set(keys)) == len(keys)
    assert len(steps) == len(chains) * 63, "differences of neighbours must not repeat across namespaces either"


def test_fields_of_a_namespace_do_not_run_into_each_other() -> None:
    one = BlockKeyer(INDEX_KEY, Namespace("c", "ab", "c"), 1).keys([1])
    two = BlockKeyer(INDEX_KEY, Namespace("c", "a", "bc"), 1).keys([1])

    assert one != two


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 17])
def test_the_last_token_of_a_padded_block_counts(size: int) -> None:
    head = [9] * (size - 1)

    assert len({keyer(size).keys([*head, last])[0] for last in (0, 1, 2**31, 2**32 - 1)}) == 4


@pytest.mark.parametrize("token", [-1, 2**32, 2**64, 1.5, "1", None])
def test_token_ids_out_of_range_are_refused(token: Any) -> None:
    with pytest.raises(ValueError, match="token ids must be integers from 0 to 4294967295"):
        keyer(1).keys([token])


@pytest.mark.parametrize("size", [0, -1])
def test_block_sizes_below_one_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"block size must be at least 1, got {size}"):
        keyer(size)


def test_a_key_is_never_the_sign_for_no_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = keyer(1)
    monkeypatch.setattr(made, "_root", 0)
    monkeypatch.setattr(blocks, "fold", lambda a, b: 0)

    assert made.keys([1, 2]) == [1, 1]


@given(st.lists(KEYS, max_size=50))
def test_keys_survive_packing(keys: list[int]) -> None:
    packed = pack_keys(keys)

    assert len(packed) == 8 * len(keys)
    assert unpack_keys(packed) == keys
    assert packed == b"".join(key.to_bytes(8, "little") for key in keys)


def test_packing_refuses_what_is_no_key() -> None:
    with pytest.raises(OverflowError):
        pack_keys([2**64])
    with pytest.raises(OverflowError):
        pack_keys([-1])
    with pytest.raises(ValueError, match="must be a multiple of 8 bytes, got 9"):
        unpack_keys(bytes(9))


def test_a_big_endian_machine_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = array("Q", [1])
    swapped.byteswap()
    monkeypatch.setattr(sys, "byteorder", "big")

    assert pack_keys([1]) == swapped.tobytes()


def test_a_key_type_is_an_integer() -> None:
    assert BlockKey(3) == 3
