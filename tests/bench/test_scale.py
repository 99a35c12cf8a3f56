"""The benchmark of many workers: fake agents' blocks are a true stream, and a small run finds no fault."""

from pathlib import Path
from typing import cast

import pytest

from bench import scale
from bench.scale import Outcome, Scale, Work, table
from bench.scale_blocks import FIRST_SEQUENCE, UNIT, Cycle, FakeBlocks, changes, random_keys
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_core.block_keys import NO_PARENT, pack_keys
from cachefleet_core.report_frames import Delta, Removed, Stored, decode_up, encode
from tests.controlplane.chains import chain

HELD = 3 * UNIT + 17
WORKER = worker_id("default/bench", "w-0")
HEAD_BYTES = 8
"""Of a message whose frame has 126 bytes to 64 KiB."""


def _held(blocks: FakeBlocks) -> tuple[int, int]:
    """Number and digest of the blocks of a snapshot."""
    index = BlockIndex()
    index.replace(WORKER, [encode(blocks.snapshot())])
    return index.held(WORKER), index.digest(WORKER)


@pytest.mark.parametrize("changed", [14, UNIT, 200, 3 * UNIT + 5])
def test_deltas_lead_from_one_snapshot_to_the_next_however_often_they_come_again(changed: int) -> None:
    cycle = Cycle(HELD, changed)
    blocks, index = FakeBlocks(cycle, pack_keys(chain(1, 5))), BlockIndex()
    index.replace(WORKER, [encode(blocks.snapshot())])
    for number in range(1, 2 * len(cycle.frames) + 3):
        frame = bytes(blocks.take())[HEAD_BYTES:]
        assert cast("Delta", decode_up(frame)).sequence == blocks.sequence == FIRST_SEQUENCE + number
        index.ingest(WORKER, frame)
        assert index.held(WORKER) == blocks.held == HELD + 5
        assert index.digest(WORKER) == blocks.digest
    assert _held(blocks) == (blocks.held, blocks.digest)


def test_workers_of_one_cycle_hold_different_blocks() -> None:
    cycle = Cycle(HELD, UNIT)
    index = BlockIndex()
    for name in ("w-0", "w-1"):
        index.replace(worker_id("default/bench", name), [encode(FakeBlocks(cycle).snapshot())])
    assert index.stats().keys == 2 * HELD


def test_a_conversation_is_one_chain_that_grows_by_single_blocks() -> None:
    keys = random_keys(100 * UNIT)
    operations = list(changes(keys, UNIT, 10 * UNIT, UNIT))
    stored = [each for each in operations if isinstance(each, Stored)]
    assert sum(each.parent == NO_PARENT for each in stored) == 1
    assert sum(len(each.keys) == 8 for each in stored) == UNIT - 63
    removed = [each for each in operations if isinstance(each, Removed)]
    assert sum(len(each.keys) // 8 for each in removed) == UNIT


@pytest.mark.slow
async def test_a_small_fleet_is_measured_and_nothing_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SETTLE_SECONDS", 0.1)  # figures of a quiet moment are not looked at
    work = Work(workers=3, rate=440, held=2000, seconds=1, requests=20, replicas=2, processes=2, profile=None)
    row = await Scale(work, tmp_path).run()
    assert row.problems == []
    assert row.frames > 3 * 5
    assert row.memory > 50
    assert 0 < row.busy_ms[0] <= row.busy_ms[1]
    assert 0 < row.decision_ms[0] <= row.decision_ms[1]
    assert row.join > 0
    assert row.resyncs == 0


def test_the_table_has_a_line_for_each_row() -> None:
    assert len(table([Outcome(10, 440), Outcome(100, 440)]).splitlines()) == 4
