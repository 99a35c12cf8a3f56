"""What an empty store says of who may come in, and the file that says it where the store is gone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachefleet_controlplane.store.access_marker import AccessMarker, ClosedReason, Mark, StoreAccess, closed, mark_of
from cachefleet_controlplane.store.store_errors import StoreError

GONE = (Mark.KEYED, Mark.LOST, Mark.UNREADABLE)


def test_an_empty_store_is_open_only_where_nothing_says_that_keys_may_be_lost() -> None:
    for mark in (Mark.ABSENT, Mark.UNKEYED):
        assert closed(StoreAccess.UNSAID, mark, had_keys=False) is ClosedReason.NO
    for mark in GONE:
        assert closed(StoreAccess.UNSAID, mark, had_keys=False) is ClosedReason.LOST
    for mark in Mark:
        assert closed(StoreAccess.KEYED, mark, had_keys=False) is ClosedReason.KEYED
        assert closed(StoreAccess.UNSAID, mark, had_keys=True) is ClosedReason.LOST


@pytest.mark.parametrize("mark", Mark)
def test_what_somebody_said_goes_before_what_was(mark: Mark) -> None:
    assert closed(StoreAccess.OPEN, mark, had_keys=True) is ClosedReason.NO


@pytest.mark.parametrize("access", StoreAccess)
@pytest.mark.parametrize("mark", Mark)
def test_what_is_marked_is_found_again_by_a_store_made_anew(access: StoreAccess, mark: Mark) -> None:
    why = closed(access, mark, had_keys=False)
    later = closed(StoreAccess.UNSAID, mark_of(access, why), had_keys=False)
    assert (later is ClosedReason.NO) == (why is ClosedReason.NO)


def test_a_mark_is_read_as_it_was_written(tmp_path: Path) -> None:
    marker = AccessMarker(tmp_path / "new" / "x.access")
    assert marker.read() is Mark.ABSENT
    for mark in (Mark.UNKEYED, Mark.KEYED, Mark.LOST):
        marker.write(mark)
        assert marker.read() is mark
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["x.access"]


@pytest.mark.parametrize("content", [b"", b"\n", b"what?", b"\xff\xfe", b"keyed" * 100])
def test_a_marker_that_cannot_be_understood_opens_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.access").write_bytes(content)
    assert AccessMarker(tmp_path / "x.access").read() is Mark.UNREADABLE


def test_a_marker_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    marker = AccessMarker(tmp_path / "blocked" / "x.access")
    assert marker.read() is Mark.ABSENT
    with pytest.raises(StoreError, match=r"x\.access cannot be written"):
        marker.write(Mark.LOST)


def test_without_a_path_there_is_no_marker() -> None:
    marker = AccessMarker(None)
    marker.write(Mark.LOST)
    assert marker.read() is Mark.ABSENT


def test_several_write_at_once(tmp_path: Path) -> None:
    """As replicas that share a file, or threads: each is done, and a reader finds one of the marks."""
    file, marks = tmp_path / "x.access", (Mark.KEYED, Mark.UNKEYED, Mark.LOST)
    AccessMarker(file).write(Mark.KEYED)

    def write(number: int) -> Mark:
        marker = AccessMarker(file)
        marker.write(marks[number % 3])
        return marker.read()

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(write, range(60))) <= set(marks)
