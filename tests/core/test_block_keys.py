from __future__ import annotations

import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import BlockKey, fold, pack_keys, pack_tokens, splitmix64, unpack_keys
from tests.core import block_key_formula as formula

KEYS = st.integers(0, 2**64 - 1)


def test_vectors_are_what_the_formula_says() -> None:
    assert formula.render() == formula.VECTORS.read_text(encoding="utf-8"), "run python -m tests.core.block_key_formula"


@given(KEYS, KEYS)
def test_fold_and_splitmix_agree_with_the_formula(a: int, b: int) -> None:
    assert fold(a, b) == formula.fold(a, b)
    assert splitmix64(a) == formula.splitmix64(a)


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


def test_packed_tokens_are_little_endian() -> None:
    assert pack_tokens([1, 2**32 - 1]) == pack_tokens(array("I", [1, 2**32 - 1])) == bytes.fromhex("01000000 ffffffff")
    with pytest.raises(ValueError, match="token ids must be integers from 0 to 4294967295"):
        pack_tokens([2**32])


def test_a_big_endian_machine_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = array("Q", [1])
    swapped.byteswap()
    monkeypatch.setattr(sys, "byteorder", "big")

    assert pack_keys([1]) == swapped.tobytes()


def test_a_key_type_is_an_integer() -> None:
    assert BlockKey(3) == 3
