"""What was sent where: bounded like a cache, gone with its epoch."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.workers.sent_texts import SentTexts
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain

A, B = WorkerId("a"), WorkerId("b")
KEYS = chain(1, 10)
OTHER = chain(2, 10)


@pytest.fixture
def texts() -> SentTexts:
    return SentTexts(BlockIndex())


class TestSentTexts:
    def test_what_was_sent_is_expected_there(self, texts: SentTexts) -> None:
        texts.sent(A, "e1", pack_keys(KEYS[:7]), room=100)
        assert texts.match(pack_keys(KEYS), [A, B]) == [7, 0]

    def test_no_more_than_there_is_room_for(self, texts: SentTexts) -> None:
        texts.sent(A, "e1", pack_keys(KEYS), room=12)
        texts.sent(A, "e1", pack_keys(OTHER[:5]), room=12)
        assert texts.match(pack_keys(OTHER), [A]) == [5]
        assert texts.match(pack_keys(KEYS), [A]) == [7]  # its end went first
        texts.sent(A, "e1", pack_keys(KEYS), room=4)
        assert texts.match(pack_keys(KEYS), [A]) == [4]

    def test_another_epoch_begins_with_nothing(self, texts: SentTexts) -> None:
        texts.sent(A, "e1", pack_keys(KEYS), room=100)
        texts.sent(A, "e2", pack_keys(OTHER), room=100)
        assert (texts.match(pack_keys(KEYS), [A]), texts.match(pack_keys(OTHER), [A])) == ([0], [10])

    def test_workers_that_are_gone_are_forgotten(self, texts: SentTexts) -> None:
        texts.sent(A, "e1", pack_keys(KEYS), room=100)
        texts.sent(B, "e1", pack_keys(KEYS), room=100)
        texts.keep([B])
        assert texts.match(pack_keys(KEYS), [A, B]) == [0, 10]

    def test_a_full_index_costs_what_is_known_of_that_worker(self) -> None:
        texts = SentTexts(BlockIndex(max_held=15))
        texts.sent(A, "e1", pack_keys(KEYS), room=100)
        texts.sent(B, "e1", pack_keys(OTHER), room=100)
        assert texts.match(pack_keys(OTHER), [B]) == [0]
        texts.sent(B, "e1", pack_keys(OTHER[:3]), room=100)
        assert texts.match(pack_keys(OTHER), [B]) == [3]


@given(sent=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 10)), max_size=12), room=st.integers(0, 15))
def test_it_is_a_least_recently_used_cache(sent: list[tuple[int, int]], room: int) -> None:
    texts, model = SentTexts(BlockIndex()), OrderedDict[int, None]()
    for seed, length in sent:
        keys = chain(seed, 10)[:length]
        texts.sent(A, "e", pack_keys(keys), room=room)
        for key in reversed(keys[:room]):
            model.pop(key, None)
            model[key] = None
        while len(model) > room:
            model.popitem(last=False)
    for seed in range(1, 5):
        keys = chain(seed, 10)
        depth = next((n for n, key in enumerate(keys) if key not in model), 10)
        assert texts.match(pack_keys(keys), [A]) == [depth]
