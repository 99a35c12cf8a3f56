"""Packed token ids and keys: against what the same calls say of lists, and against the plainest way to do it."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.blocks import pack_keys

pytest.importorskip("cachefleet_native")
import cachefleet_native

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=80)
CHAINS = st.lists(st.integers(1, 3), max_size=40)
KEYER = cachefleet_native.Keyer([1, 2, 3, 4], 16)


@given(IDS, st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_packed_ids_have_the_keys_of_their_list(ids: list[int], parent: int, position: int) -> None:
    packed = cachefleet_native.pack_ids(ids)
    assert packed == b"".join(one.to_bytes(4, "little") for one in ids)
    assert KEYER.packed_ids(packed) == KEYER.packed(ids)
    assert KEYER.packed_ids(packed, parent, position) == KEYER.packed(ids, parent, position)
    assert KEYER.packed_ids(packed, position=position, parent=parent) == KEYER.packed(ids, parent, position)


def test_a_chain_goes_on_after_its_parent() -> None:
    ids = list(range(100, 164))
    whole = KEYER.packed_ids(cachefleet_native.pack_ids(ids))
    parent = int.from_bytes(whole[8:16], "little")
    assert KEYER.packed_ids(cachefleet_native.pack_ids(ids[32:]), parent, 2) == whole[16:]


@given(IDS)
def test_any_sequence_of_ids_is_packed_alike(ids: list[int]) -> None:
    forms = [ids, tuple(ids), array("I", ids)]
    assert len({cachefleet_native.pack_ids(form) for form in forms}) == 1


@pytest.mark.parametrize("wrong", [[-1], [2**32], [1, "2"], [1.0], [None], [2**64]])
def test_what_is_no_token_id_is_refused_as_keys_refuses_it(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="token ids must be integers") as packing:
        cachefleet_native.pack_ids(wrong)
    with pytest.raises(ValueError, match="token ids must be integers") as keying:
        KEYER.keys([*wrong, *range(16)])
    assert type(packing.value) is type(keying.value)


@given(CHAINS, st.lists(CHAINS, max_size=8))
def test_common_prefixes_are_those_that_a_loop_finds(chain: list[int], others: list[list[int]]) -> None:
    expected = []
    for other in others:
        same = 0
        while same < min(len(chain), len(other)) and chain[same] == other[same]:
            same += 1
        expected.append(same)
    packed = [pack_keys(other) for other in others]
    assert cachefleet_native.common_prefixes(pack_keys(chain), packed) == expected
    assert cachefleet_native.common_prefixes(pack_keys(chain), tuple(packed)) == expected


def test_a_key_of_which_a_byte_differs_is_another() -> None:
    chain = pack_keys([2**64 - 1, 7])
    for byte in range(8):
        other = bytearray(chain)
        other[8 + byte] ^= 1
        assert cachefleet_native.common_prefixes(chain, [bytes(other), chain]) == [1, 2]


@pytest.mark.parametrize(("keys", "others", "field"), [(b"1234567", [], "keys"), (b"", [b"12345678", b"1"], "others")])
def test_packed_keys_of_a_wrong_length_are_refused(keys: bytes, others: list[bytes], field: str) -> None:
    with pytest.raises(cachefleet_native.OperationError, match=field):
        cachefleet_native.common_prefixes(keys, others)


def test_others_must_be_bytes() -> None:
    with pytest.raises(TypeError):
        cachefleet_native.common_prefixes(b"", [[1]])  # type: ignore[list-item]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=70))
def test_a_choice_says_how_much_each_candidate_holds(depths: list[int]) -> None:
    keys, index = pack_keys(range(1, 13)), cachefleet_native.Index()
    for number, depth in enumerate(depths):
        if depth:
            index.store(f"w{number}", 0, keys[: 8 * depth], 0)
    candidates = cachefleet_native.Candidates([f"w{number}" for number in range(len(depths))])
    choice = index.match_and_score(
        keys, candidates, cachefleet_native.Loads(len(depths)), tokens=192, block_size=16, needed_blocks=13
    )
    assert choice is not None
    assert memoryview(choice.depths).cast("I").tolist() == depths
    assert choice.depths == index.match_packed(keys, candidates)
