"""A heap of items whose keys change, against a dictionary of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.place.keyed_heap import SLACK, KeyedHeap

changes = st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.integers(0, 9)), max_size=200)


@given(changes=changes)
def test_the_first_is_always_the_least_and_what_is_out_of_date_stays_bounded(
    changes: list[tuple[str, int | None]],
) -> None:
    heap, keys = KeyedHeap[str, int](), dict[str, int]()
    for item, key in changes:
        if key is None:
            heap.drop(item)
            keys.pop(item, None)
        else:
            heap.put(item, key)
            keys[item] = key
        assert heap.first() == min(keys, key=lambda item: (keys[item], item), default=None)
        assert len(heap) == len(keys)
        assert len(heap._entries) <= 2 * 5 + SLACK + 1
