"""Keys of packed token ids, against what the same keyer says of lists."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cachefleet_native")
import cachefleet_native

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=80)
KEYER = cachefleet_native.Keyer([1, 2, 3, 4], 16)


@given(IDS, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_packed_ids_have_the_keys_of_their_list(ids: list[int], parent: int, position: int) -> None:
    packed = struct.pack(f"<{len(ids)}I", *ids)
    assert KEYER.packed_ids(packed) == KEYER.packed(ids)
    assert KEYER.packed_ids(packed, parent, position) == KEYER.packed(ids, parent, position)


def test_what_is_no_number_of_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        KEYER.packed_ids(b"12345")
