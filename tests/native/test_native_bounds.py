"""What the native index refuses at its bounds, and what remembered candidates see of an index that was replaced."""

from __future__ import annotations

import pytest

from cachefleet_core.block_keys import pack_keys
from cachefleet_core.report_frames import Delta, Stored, encode

pytest.importorskip("cachefleet_native")
import cachefleet_native
from cachefleet_native import Candidates, Index

KEYS = pack_keys(list(range(1, 21)))


def depths(index: Index, candidates: Candidates) -> list[int]:
    return memoryview(index.match_packed(KEYS, candidates)).cast("I").tolist()


def test_refused_calls_and_their_keys_are_counted() -> None:
    index = Index(max_held=25)
    index.store("a", 0, KEYS, 0)
    assert index.refused == (0, 0)
    with pytest.raises(cachefleet_native.IndexFullError):
        index.store("b", 0, KEYS, 0)
    frame = encode(Delta(sequence=1, operations=(Stored(0, KEYS[:80]), Stored(0, KEYS))))
    with pytest.raises(cachefleet_native.IndexFullError):
        index.ingest("b", frame)
    assert index.refused == (2, 50)
    assert index.stats()[0] == {"a": 20}


def test_a_bound_of_workers_counts_too() -> None:
    index = Index(max_workers=1)
    index.store("a", 0, KEYS, 0)
    with pytest.raises(cachefleet_native.IndexFullError):
        index.store("b", 0, KEYS, 0)
    assert index.refused == (1, 20)


def test_what_no_stream_contains_is_not_counted() -> None:
    index = Index()
    with pytest.raises(cachefleet_native.OperationError):
        index.store("a", 0, KEYS + KEYS, 0)
    assert index.refused == (0, 0)


def test_candidates_may_be_asked_of_two_indexes() -> None:
    one, two, candidates = Index(), Index(), Candidates(["a", "b"])
    one.store("a", 0, KEYS, 0)
    two.store("b", 0, KEYS[:16], 0)
    for _ in range(2):
        assert depths(one, candidates) == [20, 0]
        assert depths(two, candidates) == [0, 2]


def test_a_candidate_named_twice_has_its_depth_twice() -> None:
    index = Index()
    index.store("a", 0, KEYS, 0)
    assert depths(index, Candidates(["a", "nobody", "a"])) == [20, 0, 20]
