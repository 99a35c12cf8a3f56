"""What is remembered of a worker's changes."""

from __future__ import annotations

import msgspec
import pytest
from cachefleet_native import RemovalHistory

from cachefleet_core.block_keys import Tier, pack_keys
from cachefleet_core.report_frames import Cleared, Delta, Operation, Removed, Stored

MAX_BYTES = 64 * 1024

KEYS = pack_keys([1, 2, 3])


def delta(*operations: Operation) -> bytes:
    return msgspec.msgpack.encode(Delta(sequence=1, operations=operations))


@pytest.mark.parametrize(
    ("operation", "lost"),
    [
        (Removed(pack_keys([9, 2])), True),
        (Removed(pack_keys([9])), False),
        (Removed(pack_keys([2]), next(tier for tier in Tier if tier is not Tier.DEVICE)), False),
        (Stored(0, pack_keys([2])), False),
        (Cleared(), True),
    ],
)
def test_what_was_removed_is_known(operation: Operation, lost: bool) -> None:  # noqa: FBT001 - a parameter of a table
    history = RemovalHistory()
    history.note(delta(Stored(0, pack_keys([7])), operation), 5.0)
    assert history.lost(KEYS, since=5.0) is lost
    assert not history.lost(KEYS, since=5.1)
    assert not history.lost(b"", since=5.0)


def test_what_was_stored_again_was_lost_all_the_same() -> None:
    history = RemovalHistory()
    history.note(delta(Removed(pack_keys([2]))), 5.0)
    history.note(delta(Stored(1, pack_keys([2]))), 6.0)
    assert history.lost(KEYS, since=4.0)


def test_a_frame_that_is_not_sound_says_nothing() -> None:
    history = RemovalHistory()
    history.note(delta(Removed(pack_keys([2]))), 5.0)
    for unsound in (b"", b"\xc1", delta(Cleared())[:-1]):
        history.note(unsound, 6.0)
    assert history.lost(KEYS, since=5.0)
    assert not history.lost(KEYS, since=6.0)


def test_a_new_epoch_begins_with_nothing() -> None:
    history = RemovalHistory()
    history.note(delta(Cleared()), 5.0)
    history.begin(6.0)
    assert not history.lost(KEYS, since=0.0)
    assert history.began == 6.0


def test_the_oldest_changes_are_forgotten_beyond_the_bound() -> None:
    history = RemovalHistory()
    history.note(delta(Removed(pack_keys([2]))), 1.0)
    filling = delta(Removed(pack_keys(range(100, 1100))))
    for number in range(MAX_BYTES // len(filling) + 1):
        history.note(filling, 2.0 + number)
    assert not history.lost(KEYS, since=0.0)
    assert history.lost(pack_keys([1099]), since=0.0)
