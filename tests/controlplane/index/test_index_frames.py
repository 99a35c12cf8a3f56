"""What the index does with whole frames: all of one or nothing, and the same as its operations one by one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.index.block_index import BlockIndex, IndexFullError, IndexStats
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_core import report_frames
from cachefleet_core.block_keys import Tier
from cachefleet_core.report_frames import (
    Cleared,
    Delta,
    FrameError,
    Operation,
    Snapshot,
    Stored,
    UpFrame,
    decode_up,
    encode,
)
from tests.controlplane.chains import chain, removed, stored
from tests.reference.block_index import ReferenceIndex

A, B = WorkerId("a"), WorkerId("b")
KEYS = chain(1, 60)
SOME = Delta(rank=3, sequence=7, operations=(stored(KEYS[:5]), removed(KEYS[3:]), Cleared(), stored(KEYS[:9])))

slices = st.tuples(st.integers(0, 50), st.integers(1, 60)).map(lambda cut: KEYS[cut[0] : cut[0] + cut[1]])
tiers = st.sampled_from(list(Tier))
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(stored, slices, st.sampled_from([0, 7, 2**64 - 1]), tiers),
    st.builds(removed, slices, tiers),
    st.just(Cleared()),
)


def delta(*given: Operation) -> bytes:
    return encode(Delta(sequence=1, operations=given))


def snapshot(*parts: tuple[Stored, ...]) -> list[bytes]:
    last = len(parts) - 1
    return [encode(Snapshot(sequence=4, part=n, last=n == last, chains=chains)) for n, chains in enumerate(parts)]


def applied(*given: Operation) -> ReferenceIndex:
    reference = ReferenceIndex()
    for operation in given:
        reference.apply(A, operation)
    return reference


def picture(index: BlockIndex | ReferenceIndex) -> tuple[object, ...]:
    """All that can be seen of worker A."""
    return dict(index.stats().held), index.digest(A), *(index.match(KEYS, [A], tier=tier) for tier in Tier)


def content(stats: IndexStats) -> tuple[object, ...]:
    return dict(stats.held), stats.keys


class TestDeltas:
    @given(batches=st.lists(st.lists(operations, max_size=6), min_size=1, max_size=4))
    def test_one_is_applied_as_its_operations_are(self, batches: list[list[Operation]]) -> None:
        index = BlockIndex()
        for batch in batches:
            index.ingest(A, delta(*batch))
        assert picture(index) == picture(applied(*(operation for batch in batches for operation in batch)))

    @pytest.mark.parametrize(
        ("frame", "field"),
        [
            (Delta(sequence=1, operations=(stored([5, 6]), stored([5, 6, 5]))), "keys: a key occurs twice"),
            (Delta(sequence=1, operations=(stored([5]), stored([5], parent=5))), "keys: a key occurs twice"),
            (Delta(sequence=1, operations=(stored([5]), removed([0]))), "keys: 0"),
            (Delta(sequence=1, operations=(stored([5]), Stored(0, b""))), "operations|keys"),
            (Delta(sequence=1, operations=(stored([5]), Stored(0, b"123456789"))), "keys"),
            (Delta(sequence=1, operations=(Stored(0, stored([5]).keys, 7),)), "tier|Tier|enum"),  # type: ignore[arg-type]  # hostile
            (Delta(rank=4096, sequence=1, operations=()), "rank"),
            (Delta(sequence=1, operations=(Cleared(),) * (report_frames.MAX_OPERATIONS + 1)), "operations"),
            (Delta(sequence=1, operations=(removed([5] * 100_000),) * 2), "keys"),
            (Snapshot(sequence=1, part=0, last=True), "type: not a delta"),
        ],
    )
    def test_an_unsound_one_is_refused_whole(self, frame: UpFrame, field: str) -> None:
        index = BlockIndex()
        index.ingest(A, delta(stored(KEYS[:4])))
        before = content(index.stats())
        with pytest.raises(FrameError, match=field):
            index.ingest(A, encode(frame))
        assert content(index.stats()) == before

    def test_what_does_not_fit_is_refused_whole(self) -> None:
        index = BlockIndex(max_held=20, max_workers=1)
        index.ingest(A, delta(stored(KEYS[:10])))
        with pytest.raises(IndexFullError):
            index.ingest(A, delta(removed(KEYS[:1]), stored(KEYS[20:25]), stored(KEYS[30:40])))
        with pytest.raises(IndexFullError):
            index.ingest(B, delta(stored(KEYS[:1])))
        assert (index.stats().held, index.match(KEYS, [A])) == ({A: 10}, [10])
        index.ingest(A, delta(stored(KEYS[:20]), removed(KEYS[:5]), stored(KEYS[:5])))
        assert index.match(KEYS, [A]) == [20]

    def test_room_comes_back_within_the_bound(self) -> None:
        index = BlockIndex(max_held=20)
        for life in range(5):
            index.ingest(A, delta(Cleared(), stored(chain(life, 8))))
            index.ingest(B, delta(stored(chain(life, 8))))
            index.forget(B)
        assert index.stats().held == {A: 8}

    @pytest.mark.parametrize("extra", [1, "x", None, [1, [2, {"a": 1.5}]], b"12", {"deep": {"er": []}}], ids=repr)
    def test_fields_not_known_are_ignored(self, extra: object) -> None:
        raw = {
            "type": "delta",
            "unknown": extra,
            "sequence": 3,
            "operations": [[0, 0, stored(KEYS[:6]).keys, 0, extra]],
        }
        index = BlockIndex()
        index.ingest(A, msgspec.msgpack.encode(raw))
        assert index.match(KEYS, [A]) == [6]


class TestSnapshots:
    @given(parts=st.lists(st.lists(slices.map(stored), max_size=3).map(tuple), min_size=1, max_size=4))
    def test_one_takes_the_place_of_everything(self, parts: list[tuple[Stored, ...]]) -> None:
        index = BlockIndex()
        index.ingest(A, delta(stored(chain(9, 30), tier=Tier.HOST), stored(KEYS)))
        index.replace(A, snapshot(*parts))
        assert picture(index) == picture(applied(*(one for part in parts for one in part)))

    @pytest.mark.parametrize(
        "parts",
        [[], [(0, False)], [(0, True), (1, True)], [(1, True)], [(0, False), (0, True)], [(0, False), (2, True)]],
        ids=str,
    )
    def test_parts_that_are_not_of_one_change_nothing(self, parts: list[tuple[int, bool]]) -> None:
        index = BlockIndex()
        index.ingest(A, delta(stored(KEYS[:4])))
        data = [encode(Snapshot(sequence=4, part=part, last=last, chains=(stored(KEYS),))) for part, last in parts]
        with pytest.raises(FrameError, match="part"):
            index.replace(A, data)
        assert index.match(KEYS, [A]) == [4]

    def test_an_unsound_part_changes_nothing(self) -> None:
        index = BlockIndex()
        index.ingest(A, delta(stored(KEYS[:4])))
        for unsound in (stored([5, 5]), stored([0]), Stored(0, b"1234567890")):
            with pytest.raises(FrameError, match="keys"):
                index.replace(A, snapshot((stored(KEYS),), (unsound,)))
        with pytest.raises(FrameError):
            index.replace(A, [delta(stored(KEYS))])
        assert index.match(KEYS, [A]) == [4]

    def test_the_room_of_what_it_replaces_is_its_own(self) -> None:
        index = BlockIndex(max_held=20, max_workers=2)
        index.ingest(A, delta(stored(KEYS[:15])))
        with pytest.raises(IndexFullError):
            index.replace(B, snapshot((stored(KEYS[:6]),)))
        with pytest.raises(IndexFullError):
            index.replace(A, snapshot((stored(KEYS[:21]),)))
        assert index.match(KEYS, [A, B]) == [15, 0]
        index.replace(A, snapshot((stored(KEYS[20:30]),), (stored(KEYS[30:40]),)))
        assert (index.match(KEYS[20:], [A]), index.stats().held) == ([20], {A: 20})


class TestHostileBytes:
    @given(
        changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=5),
        cut=st.integers(-3, 3),
    )
    def test_changed_ones_are_refused_whole_or_mean_what_they_mean_elsewhere(
        self, changes: list[tuple[int, int]], cut: int
    ) -> None:
        frame = bytearray(encode(SOME))
        for place, value in changes:
            frame[place % len(frame)] = value
        assert_harmless(BlockIndex(), bytes(frame[: len(frame) - cut]) if cut > 0 else bytes(frame) + bytes(-cut))

    @given(hostile=st.binary(max_size=300))
    def test_any_are_harmless(self, hostile: bytes) -> None:
        assert_harmless(BlockIndex(), hostile)

    def test_nesting_without_end_is_refused(self) -> None:
        with pytest.raises(FrameError):
            BlockIndex().ingest(A, b"\x81\xa1x" + b"\x91" * 1_000_000)


def assert_harmless(index: BlockIndex, hostile: bytes) -> None:
    index.ingest(A, delta(stored(KEYS[:4])))
    try:
        index.ingest(A, hostile)
    except FrameError:
        assert (index.stats().held, index.match(KEYS, [A])) == ({A: 4}, [4])
        return
    decoded = decode_up(hostile)
    assert isinstance(decoded, Delta)
    assert picture(index) == picture(applied(stored(KEYS[:4]), *decoded.operations))
