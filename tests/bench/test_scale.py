"""The benchmark of many workers: fake agents' blocks are a true stream, and a small run finds no fault."""

from pathlib import Path

import pytest

from bench.scale import Outcome, Scale, Work, table
from bench.scale_blocks import SPARE_UNITS, UNIT, FakeResidents
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_core.block_keys import NO_PARENT, pack_keys
from cachefleet_core.report_frames import Removed, Stored
from tests.controlplane.chains import chain

HELD = 3 * UNIT + 17
WORKER = worker_id("default/bench", "w-0")


def _held(residents: FakeResidents) -> tuple[int, int]:
    """Number and digest of the blocks of a snapshot."""
    index = BlockIndex()
    for each in residents.snapshot():
        index.apply(WORKER, each)
    return index.held(WORKER), index.digest(WORKER)


@pytest.mark.parametrize("step", [1, 7, UNIT, 3 * UNIT + 5])
def test_deltas_lead_from_one_snapshot_to_the_next(step: int) -> None:
    residents = FakeResidents(HELD, pack_keys(chain(1, 5)))
    index = BlockIndex()
    for each in residents.snapshot():
        index.apply(WORKER, each)
    for _ in range((SPARE_UNITS * UNIT + 2 * HELD) // step):  # more than a period
        residents.now += step
        for operation in residents.take():
            index.apply(WORKER, operation)
        assert index.held(WORKER) == residents.held == HELD + 5
        assert index.digest(WORKER) == residents.digest
    assert _held(residents) == (residents.held, residents.digest)


def test_a_conversation_is_one_chain_that_grows_by_single_blocks() -> None:
    residents = FakeResidents(HELD)
    residents.now += UNIT
    stored = [each for each in residents.take() if isinstance(each, Stored)]
    assert sum(each.parent == NO_PARENT for each in stored) == 1
    assert sum(len(each.keys) == 8 for each in stored) > UNIT // 4
    residents.now += UNIT
    removed = [each for each in residents.take() if isinstance(each, Removed)]
    assert sum(len(each.keys) // 8 for each in removed) == UNIT


async def test_a_small_fleet_is_measured_and_nothing_is_wrong(tmp_path: Path) -> None:
    work = Work(workers=3, rate=440, held=2000, seconds=1, requests=20, replicas=2, processes=2, profile=None)
    row = await Scale(work, tmp_path).run()
    assert row.problems == []
    assert row.frames > 3 * 5
    assert row.busy > 0
    assert row.memory > 50
    assert 0 < row.busy_ms[0] <= row.busy_ms[1]
    assert row.join > 0
    assert row.resyncs == 0


def test_the_table_has_a_line_for_each_row() -> None:
    assert len(table([Outcome(10, 440), Outcome(100, 440)]).splitlines()) == 4
