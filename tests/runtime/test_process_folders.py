"""Folders of processes that end, are killed, or still run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from cachefleet_runtime import process_folders
from cachefleet_runtime.process_folders import LOCK, MAX_REMOVED, process_folder, remove_left

PREFIX: Final = "cachefleet-"
HOLDER: Final = """
import sys
from cachefleet_runtime.process_folders import process_folder
with process_folder("cachefleet-", sys.argv[1]) as folder:
    (folder / "websockets").write_text("")
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a folder, until its input ends or it is killed."""
    command = [sys.executable, "-c", HOLDER, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_folder_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    with process_folder(PREFIX, tmp_path) as folder:
        assert (folder.parent, folder.name.startswith(PREFIX)) == (tmp_path, True)
        assert (folder.stat().st_mode & 0o777, names(folder)) == (0o700, [LOCK])
    assert not names(tmp_path)


def test_what_a_killed_process_left_goes_at_the_next_start_and_a_running_ones_stays(tmp_path: Path) -> None:
    with holder(tmp_path) as (killed, left), holder(tmp_path) as (_, kept):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists(), "it had no time to remove it"
        with process_folder(PREFIX, tmp_path) as own:
            assert sorted(tmp_path.iterdir()) == sorted([kept, own])
    assert (kept / "websockets").exists()


def test_a_process_that_ends_leaves_nothing(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, folder):
        assert folder.exists()
        process.communicate("")
    assert not names(tmp_path)


def test_what_is_of_other_names_or_owners_or_has_no_lock_stays(tmp_path: Path) -> None:
    there = ["other-1", f"{PREFIX}begun", f"{PREFIX}readable"]
    for name in there:
        (tmp_path / name).mkdir(mode=0o700)
    for name in ("other-1", f"{PREFIX}readable"):
        (tmp_path / name / LOCK).write_text("")
    (tmp_path / f"{PREFIX}readable").chmod(0o755)
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "other-1")
    (tmp_path / f"{PREFIX}file").write_text("")
    before = names(tmp_path)
    assert remove_left(tmp_path, PREFIX) == 0
    assert names(tmp_path) == before
    assert remove_left(tmp_path / "missing", PREFIX) == 0


def test_one_start_removes_so_many_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_REMOVED == 256
    monkeypatch.setattr(process_folders, "MAX_REMOVED", 2)
    for number in range(3):
        folder = tmp_path / f"{PREFIX}{number}"
        folder.mkdir(mode=0o700)
        (folder / LOCK).write_text("")
    assert remove_left(tmp_path, PREFIX) == 2
    assert len(names(tmp_path)) == 1
