from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.events.event_reader import EventReader
from cachefleet_worker.agent.engines.vllm.events.messages import Marked, UnreadableBatch
from tests.worker.agent.model import BLOCK_SIZE, CONTRACT, INDEX_KEY, Block, ModelEngine

BLOCK = Block((1, 2))
SUM = BLOCK.hash % 2**64


class Taken:
    """An intake that has taken one block, and what it holds."""

    def __init__(self, *, snapshots: bool) -> None:
        self.residents = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE)
        self.event_reader = EventReader(self.residents, snapshots=snapshots)
        engine = ModelEngine()
        engine.store([BLOCK])
        assert self.event_reader.apply(engine.publish()[1]) is None


def batch(*events: object, mark: object = None) -> bytes:
    return msgspec.msgpack.encode([0.0, list(events), 0, *([] if mark is None else [mark])])


@pytest.fixture
def taken() -> Taken:
    return Taken(snapshots=True)


@pytest.mark.parametrize("payload", [b"\xc1", batch({"type": "BlockRemoved"}), batch("x")])
def test_what_cannot_be_read_changes_nothing_where_a_snapshot_heals(taken: Taken, payload: bytes) -> None:
    assert taken.event_reader.apply(payload) == UnreadableBatch()
    assert taken.residents.held == 1


def test_a_removal_that_cannot_be_read_empties_a_stock_set() -> None:
    taken = Taken(snapshots=False)
    assert taken.event_reader.apply(batch({"type": "BlockRemoved"})) is None
    assert taken.residents.held == 0
    assert taken.event_reader.apply(b"\xc1") == UnreadableBatch()


@pytest.mark.parametrize(
    ("mark", "found"),
    [
        ({"boot": "b", "totals": [[0, 1, SUM]]}, Marked("b", agrees=True)),
        ({"boot": "b", "totals": [[0, 1, SUM + 1]]}, Marked("b", agrees=False)),
        ({"boot": "b", "totals": []}, Marked("b", agrees=False)),
        ({"boot": "b", "totals": None}, Marked("b", agrees=None)),
        ({"boot": "b"}, Marked("b", agrees=None)),
        ({"boot": "b", "of_a_later_release": 1}, Marked("b", agrees=None)),
        ({"boot": ""}, None),
        ({"boot": 5}, None),
        ({}, None),
        ("text", None),
    ],
)
def test_marks_are_compared(taken: Taken, mark: Any, found: Marked | None) -> None:
    assert taken.event_reader.apply(batch(mark=mark)) == found
    glanced = taken.event_reader.peek(batch(mark=mark))
    assert glanced == (Marked(found.boot) if found else None)


def test_a_mark_is_of_what_was_there_after_its_own_batch(taken: Taken) -> None:
    removal = {"type": "BlockRemoved", "block_hashes": [BLOCK.hash], "medium": "GPU"}
    assert taken.event_reader.apply(batch(removal, mark={"boot": "b", "totals": []})) == Marked("b", agrees=True)


def test_a_glance_takes_nothing(taken: Taken) -> None:
    assert taken.event_reader.peek(batch({"type": "AllBlocksCleared"})) is None
    assert taken.event_reader.peek(b"\xc1") is None
    assert taken.residents.held == 1


def test_what_was_met_is_counted_once(taken: Taken) -> None:
    taken.event_reader.apply(batch({"type": "BlockMoved"}, {"type": "BlockStored"}))
    assert taken.event_reader.counts() == {"stored": 1, "unknown": 1, "malformed": 1}
    assert taken.event_reader.counts() == {}


def test_without_a_draft_laid_ready_there_is_nothing_to_restore(taken: Taken) -> None:
    taken.event_reader.restore()
    assert taken.residents.held == 1
    taken.event_reader.lay_ready(taken.residents.draft())
    taken.event_reader.restore()
    assert taken.residents.held == 0
