"""Bytes of frames into the native index, against decoding and applying them in Python; hostile ones change nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.index import PythonIndex, WorkerId
from cachefleet_core import reports
from cachefleet_core.blocks import Tier
from cachefleet_core.reports import Cleared, Delta, FrameError, Operation, Snapshot, Stored, decode_up, encode
from tests.controlplane.chains import chain, removed, stored

pytest.importorskip("cachefleet_native")
import cachefleet_native

from cachefleet_controlplane.native_index import NativeIndex

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


def applied(deltas: list[Delta]) -> PythonIndex:
    twin = PythonIndex()
    for delta in deltas:
        for operation in delta.operations:
            twin.apply(A, operation)
    return twin


def assert_alike(index: NativeIndex, twin: PythonIndex) -> None:
    assert index.stats().held == twin.stats().held
    assert index.digest(A) == twin.digest(A)
    assert [index.match(KEYS, [A], tier=tier) for tier in Tier] == [twin.match(KEYS, [A], tier=tier) for tier in Tier]


@given(st.lists(st.lists(operations, max_size=6), min_size=1, max_size=4))
def test_a_delta_is_applied_as_its_operations_are(batches: list[list[Operation]]) -> None:
    index = NativeIndex()
    deltas = [Delta(rank=n, sequence=2**40 + n, operations=tuple(batch)) for n, batch in enumerate(batches)]
    for delta in deltas:
        assert index.native.ingest(A, encode(delta))[:2] == (delta.rank, delta.sequence)
    assert_alike(index, applied(deltas))


def test_a_large_delta_is_applied_with_others_asking() -> None:
    keys = chain(5, 100_000)
    index, twin = NativeIndex(), PythonIndex()
    delta = Delta(sequence=1, operations=(stored(keys), removed(keys[50_000:50_100])))
    assert index.native.ingest(A, encode(delta)) == (0, 1, 100_100)
    for operation in delta.operations:
        twin.apply(A, operation)
    assert index.digest(A) == twin.digest(A)
    assert index.match(keys, [A]) == [50_000]


@given(st.lists(st.lists(slices, max_size=3), min_size=1, max_size=4))
def test_a_snapshot_takes_the_place_of_everything(parts: list[list[list[int]]]) -> None:
    index, twin = NativeIndex(), PythonIndex()
    index.apply(A, stored(chain(9, 30), tier=Tier.HOST))
    frames = [
        Snapshot(sequence=4, part=number, last=number + 1 == len(parts), chains=tuple(map(stored, chains)))
        for number, chains in enumerate(parts)
    ]
    assert index.native.replace(A, [encode(frame) for frame in frames])[:2] == (0, 4)
    for frame in frames:
        for held in frame.chains:
            twin.apply(A, held)
    assert_alike(index, twin)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ([], "part"),
        ([(0, False)], "part"),
        ([(0, True), (1, True)], "part"),
        ([(1, True)], "part"),
        ([(0, False), (0, True)], "part"),
    ],
)
def test_parts_that_are_no_snapshot_change_nothing(parts: list[tuple[int, bool]], field: str) -> None:
    index = NativeIndex()
    index.apply(A, stored(KEYS[:4]))
    data = [encode(Snapshot(sequence=4, part=number, last=last, chains=(stored(KEYS),))) for number, last in parts]
    with pytest.raises(cachefleet_native.FrameError, match=field):
        index.native.replace(A, data)
    assert index.match(KEYS, [A]) == [4]


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (Delta(sequence=1, operations=(stored([5, 6]), stored([5, 6, 5]))), "keys: a key occurs twice"),
        (Delta(sequence=1, operations=(stored([5]), stored([5], parent=5))), "keys: a key occurs twice"),
        (Delta(sequence=1, operations=(stored([5]), removed([0]))), "keys: 0"),
        (Delta(sequence=1, operations=(stored([5]), Stored(0, b""))), "keys"),
        (Delta(sequence=1, operations=(stored([5]), Stored(0, b"1234567"))), "keys"),
        (Delta(sequence=1, operations=(Stored(0, stored([5]).keys, 7),)), "tier"),  # type: ignore[arg-type]  # hostile
        (Delta(sequence=-1, operations=()), "sequence: negative"),
        (Delta(rank=4096, sequence=1, operations=()), "rank"),
        (Delta(sequence=1, operations=(Cleared(),) * (reports.MAX_OPERATIONS + 1)), "operations: too many"),
        (Delta(sequence=1, operations=(removed([5] * 100_000),) * 2), "keys: too many"),
        (Snapshot(sequence=1, part=0, last=True), "type: not a delta"),
    ],
)
def test_a_frame_that_is_not_sound_is_refused_whole(frame: Delta | Snapshot, field: str) -> None:
    index = NativeIndex()
    index.apply(A, stored(KEYS[:4]))
    before = index.stats()
    with pytest.raises(cachefleet_native.FrameError, match=field):
        index.native.ingest(A, encode(frame))
    assert index.stats() == before


def test_what_does_not_fit_is_refused_whole() -> None:
    index = NativeIndex(max_held=20, max_workers=2)
    index.apply(A, stored(KEYS[:10]))
    frame = encode(Delta(sequence=1, operations=(stored(KEYS[:5]), stored(KEYS[5:25]))))
    with pytest.raises(cachefleet_native.IndexFullError):
        index.native.ingest(B, frame)
    assert index.stats().held == {A: 10}
    part = encode(Snapshot(sequence=1, part=0, last=True, chains=(stored(KEYS[20:40]),)))
    assert index.native.replace(A, [part]) == (0, 1, 20)
    with pytest.raises(cachefleet_native.IndexFullError):
        index.native.replace(B, [part])
    assert index.match(KEYS[20:], [A, B]) == [20, 0]


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=5), st.integers(0, 3), st.data())
def test_hostile_bytes_are_refused_whole_or_mean_what_they_mean_elsewhere(
    changes: list[tuple[int, int]], cut: int, data: st.DataObject
) -> None:
    frame = bytearray(encode(SOME))
    for place, value in changes:
        frame[place % len(frame)] = value
    hostile = bytes(frame[: len(frame) - cut]) if data.draw(st.booleans()) else bytes(frame) + bytes(cut)
    assert_harmless(hostile)


@given(st.binary(max_size=300))
def test_any_bytes_are_harmless(hostile: bytes) -> None:
    assert_harmless(hostile)


def assert_harmless(hostile: bytes) -> None:
    index = NativeIndex()
    index.apply(A, stored(KEYS[:4]))
    try:
        index.native.ingest(A, hostile)
    except cachefleet_native.FrameError:
        assert (index.stats().held, index.match(KEYS, [A])) == ({A: 4}, [4])
        return
    decoded = decode_up(hostile)
    assert isinstance(decoded, Delta)
    assert_alike(index, applied([Delta(sequence=0, operations=(stored(KEYS[:4]),)), decoded]))


@pytest.mark.parametrize("extra", [1, "x", None, [1, [2, {"a": 1.5}]], b"12", {"deep": {"er": []}}])
def test_fields_not_known_are_ignored(extra: object) -> None:
    raw = {"type": "delta", "unknown": extra, "sequence": 3, "operations": [[0, 0, stored(KEYS[:6]).keys, 0, extra]]}
    data = msgspec.msgpack.encode(raw)
    index = NativeIndex()
    assert index.native.ingest(A, data) == (0, 3, 6)
    assert isinstance(decode_up(data), Delta)


def test_nesting_without_end_is_refused() -> None:
    bomb = b"\x81\xa1x" + b"\x91" * 1_000_000
    with pytest.raises(cachefleet_native.FrameError):
        NativeIndex().native.ingest(A, bomb)
    with pytest.raises(FrameError):
        decode_up(bomb)
