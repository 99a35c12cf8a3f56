"""What the native index tells of frames besides what ``test_index_frames`` asks of every index."""

from __future__ import annotations

import cachefleet_native
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_core.block_keys import Tier
from cachefleet_core.report_frames import Delta, Snapshot, encode
from tests.controlplane.chains import chain, removed, stored
from tests.reference.block_index import ReferenceIndex

A, B = WorkerId("a"), WorkerId("b")
KEYS = chain(1, 60)


@given(st.integers(0, 4095), st.integers(0, 2**62), st.integers(1, 60))
def test_an_ingested_frame_is_named_and_its_keys_counted(rank: int, sequence: int, count: int) -> None:
    index = BlockIndex()
    delta = Delta(rank=rank, sequence=sequence, operations=(stored(KEYS[:count]), removed(KEYS[:1])))
    assert index.native.ingest(A, encode(delta)) == (rank, sequence, count + 1)
    part = Snapshot(rank=rank, sequence=sequence, part=0, last=True, chains=(stored(KEYS[:count]),))
    assert index.native.replace(A, [encode(part)]) == (rank, sequence, count)


def test_a_large_delta_is_applied_with_others_asking() -> None:
    keys = chain(5, 100_000)
    index, reference = BlockIndex(), ReferenceIndex()
    delta = Delta(sequence=1, operations=(stored(keys), removed(keys[50_000:50_100])))
    assert index.native.ingest(A, encode(delta)) == (0, 1, 100_100)
    reference.ingest(A, encode(delta))
    assert index.digest(A) == reference.digest(A)
    assert index.match(keys, [A]) == [50_000]


def test_a_field_given_twice_is_refused() -> None:
    index = BlockIndex()
    index.apply(A, stored(KEYS[:4], tier=Tier.HOST))
    whole = encode(Delta(sequence=1, operations=(stored(KEYS),)))
    twice = bytes([whole[0] + 1]) + whole[1:] + b"\xa8sequence\x02"
    with pytest.raises(cachefleet_native.FrameError, match="sequence: given twice"):
        index.native.ingest(A, twice)
    assert index.stats().held == {A: 4}
