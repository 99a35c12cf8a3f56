"""What the native index refuses at its bounds, and what remembered candidates see of an index that was replaced."""

from __future__ import annotations

import random

import pytest

from cachefleet_core.block_keys import pack_keys
from cachefleet_core.report_frames import Delta, Stored, encode

pytest.importorskip("cachefleet_native")
import cachefleet_native
from cachefleet_native import Candidates, Index

KEYS = pack_keys(list(range(1, 21)))
BYTES = 5_600 * 1024


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


def churn(index: Index, chance: random.Random, rounds: int, held: dict[str, list[bytes]]) -> int:
    """Random chains of random workers, stored and removed; how often one was refused, which has changed nothing."""
    refused = 0
    for number in range(rounds):
        worker = f"w-{chance.randrange(8)}"
        chains = held.setdefault(worker, [])
        if chains and chance.random() < 0.4:
            index.remove(worker, chains.pop(chance.randrange(len(chains))), 0)
            continue
        keys = chance.randbytes(8 * chance.choice((1, 1, 40, 800)))
        before = (index.held(worker), index.digest(worker), index.stats()[1])
        try:
            index.store(worker, 0, keys, 0)
        except cachefleet_native.IndexFullError:
            refused += 1
            assert (index.held(worker), index.digest(worker), index.stats()[1]) == before, number
        else:
            chains.append(keys)
    return refused


@pytest.mark.parametrize("seed", range(3))
def test_memory_is_bounded_whatever_comes_and_goes(seed: int) -> None:
    index, held = Index(max_bytes=BYTES), dict[str, list[bytes]]()
    assert churn(index, random.Random(seed), 20_000, held) > 100
    assert BYTES * 0.9 < index.stats()[2] < BYTES * 1.25  # what is free but scattered is not counted as used
    assert sum(index.stats()[0].values()) == sum(len(keys) // 8 for chains in held.values() for keys in chains)


def test_what_the_index_has_no_memory_for_is_refused_with_the_reason_and_fits_once_others_have_gone() -> None:
    index, chance = Index(max_bytes=BYTES), random.Random(1)
    snapshot = chance.randbytes(8 * 80_000)
    index.store("a", 0, snapshot, 0)
    index.store("b", 0, chance.randbytes(8 * 80_000), 0)
    frame = encode(Delta(sequence=1, operations=(Stored(0, KEYS), Stored(0, chance.randbytes(8 * 80_000)))))
    with pytest.raises(cachefleet_native.IndexFullError, match=rf"takes \d+ bytes of memory, its bound is {BYTES}"):
        index.ingest("c", frame)
    assert index.stats()[0] == {"a": 80_000, "b": 80_000}
    index.ingest("a", encode(Delta(sequence=1, operations=(Stored(0, snapshot),))))  # holds them already
    index.forget("b")
    index.ingest("c", frame)
    assert index.held("c") == 80_020


def test_bounds_beyond_what_an_index_can_number_are_refused() -> None:
    for beyond in ({"max_bytes": (1 << 33) + 1}, {"max_held": (1 << 32) + 1}):
        with pytest.raises(ValueError, match="at most 1048576 workers, 4294967296 held blocks and 8589934592 bytes"):
            Index(**beyond)
