"""The native index against the reference over long histories; what only it has."""

from __future__ import annotations

import random
import struct

import cachefleet_native
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefleet_controlplane.index.block_index import BlockIndex, IndexDefectError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_core.block_keys import BlockKey, Tier, pack_keys
from cachefleet_core.report_frames import Operation
from tests.controlplane.chains import chain, removed, stored
from tests.controlplane.index.index_histories import History
from tests.reference.block_index import ReferenceIndex

A, B = WorkerId("a"), WorkerId("b")
KEYS = chain(1, 40)


def happen(index: BlockIndex | ReferenceIndex, worker: WorkerId, operation: Operation | None) -> None:
    if operation is None:
        index.forget(worker)
    else:
        index.apply(worker, operation)


def assert_alike(native: BlockIndex, reference: ReferenceIndex, history: History) -> None:
    assert [native.digest(worker) for worker in history.workers] == [
        reference.digest(worker) for worker in history.workers
    ]
    assert native.stats().held == reference.stats().held
    assert [*map(native.held_below, history.workers)] == [*map(reference.held_below, history.workers)]
    for keys, workers, limit in history.questions():
        for tier in Tier:
            expected = reference.match(keys, workers, tier=tier, limit=limit)
            assert native.match(keys, workers, tier=tier, limit=limit) == expected
        matched = reference.match(keys, workers)
        assert native.loadable(keys, workers, matched) == reference.loadable(keys, workers, matched)


@settings(max_examples=settings().max_examples // 4)
@given(st.integers(0, 2**32))
def test_long_histories_end_as_those_of_the_reference(seed: int) -> None:
    history = History(seed)
    native, reference = BlockIndex(), ReferenceIndex()
    for number, (worker, operation) in enumerate(history.operations()):
        happen(native, worker, operation)
        happen(reference, worker, operation)
        assert native.digest(worker) == reference.digest(worker)
        if number % 75 == 0:
            assert_alike(native, reference, history)
    assert_alike(native, reference, history)


@settings(max_examples=settings().max_examples // 4)
@given(st.randoms(use_true_random=False))
def test_what_grows_side_by_side_loses_blocks_and_goes_on_otherwise_is_matched_exactly(chance: random.Random) -> None:
    native, reference = BlockIndex(), ReferenceIndex()
    kept = [chain(number, 30) for number in range(4)]
    for turn in range(40):
        worker, place = chance.choice([A, B]), chance.randrange(len(kept))
        cut = chance.choice([0, 0, chance.randrange(40)]) if len(kept[place]) > 100 else 0
        kept[place] = kept[place][: len(kept[place]) - cut]
        parent, fresh = kept[place][-1], chain(1000 + turn, chance.randrange(1, 90))
        lost = chance.sample(kept[place], chance.choice([1, 3, 25]))
        back = chance.sample(kept[place], chance.choice([1, 20]))
        for operation in (stored(fresh, parent=parent), removed(lost), stored(back)):
            for index in (native, reference):
                index.apply(worker, operation)
        kept[place] = [*kept[place], *fresh]
        for keys in kept:
            start = chance.choice([0, chance.randrange(len(keys))])
            assert native.match(keys[start:], [A, B]) == reference.match(keys[start:], [A, B])
    assert native.stats().held == reference.stats().held
    assert native.stats().keys == reference.stats().keys
    assert [*map(native.digest, (A, B))] == [*map(reference.digest, (A, B))]


def test_everything_goes_when_everybody_is_gone() -> None:
    history = History(7)
    native = BlockIndex()
    for worker, operation in history.operations():
        happen(native, worker, operation)
    for worker in history.workers:
        native.forget(worker)
    for _ in range(2000):
        native.apply(A, stored([5]))
    assert (native.stats().held, native.stats().keys) == ({A: 1}, 1)


def test_equal_content_takes_equal_memory_after_much_churn() -> None:
    chance = random.Random(3)
    chains = [chain(number, 200) for number in range(200)]
    native = BlockIndex()
    for keys in chains:
        native.apply(A, stored(keys))
    before = native.stats().bytes
    for _ in range(4000):
        keys, cut = chance.choice(chains), chance.randrange(200)
        native.native.remove(A, pack_keys(reversed(keys[cut:])), 0)
        native.apply(A, stored(keys[cut:], parent=keys[cut - 1] if cut else 0))
    assert native.stats().keys == 40_000
    assert native.stats().bytes <= 1.05 * before


def test_candidates_looked_up_before_follow_restarts() -> None:
    index = BlockIndex()
    candidates = cachefleet_native.Candidates([A, "nobody", B, A])
    packed = pack_keys(KEYS)

    def ask() -> tuple[int, ...]:
        return struct.unpack("<4I", index.native.match_packed(packed, candidates))

    assert ask() == (0, 0, 0, 0)
    index.apply(A, stored(KEYS[:7]))
    index.apply(B, stored(KEYS[:9]))
    assert ask() == (7, 0, 9, 7)
    index.forget(A)
    assert ask() == (0, 0, 9, 0)
    index.apply(A, stored(KEYS))
    assert ask() == (40, 0, 9, 40)


@pytest.mark.parametrize("odd", [2**64, -1, 2**70, 0])
def test_what_can_be_no_key_ends_a_prefix(odd: int) -> None:
    for index in (BlockIndex(), ReferenceIndex()):
        index.apply(A, stored(KEYS))
        assert index.match([*KEYS[:5], BlockKey(odd), *KEYS[5:]], [A]) == [5]


def test_a_defect_has_its_own_name() -> None:
    index = BlockIndex()
    index.native = _Defective()  # type: ignore[assignment]
    for act in (
        lambda: index.match(KEYS, [A]),
        lambda: index.ingest(A, b""),
        lambda: index.replace(A, []),
        lambda: index.apply(A, stored(KEYS)),
    ):
        with pytest.raises(IndexDefectError, match="a defect"):
            act()


class _Defective:
    def _fail(self, *_args: object, **_named: object) -> None:
        raise cachefleet_native.InternalError("a defect")

    match = ingest = replace = store = _fail
