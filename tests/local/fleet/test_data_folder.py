from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cachefleet_core.tenancy import FleetKey, fleet_index_key, parse_index_key
from cachefleet_local.fleet.data_folder import (
    DataFolderError,
    PoolWorkers,
    keep_secrets,
    open_folder,
    run_folder,
    sole_owner,
    turn_logs,
    write_whole,
)

DEMO = PoolWorkers("default/demo", "demo", ("demo-0", "demo-1"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "data")
    key = keep_secrets(folder, [DEMO])
    files = sorted((folder.root / "secrets").iterdir())
    before = {file: file.read_text() for file in files}
    assert len(files) == 6
    assert {mode(file) for file in files} == {0o600}
    assert mode(folder.root / "secrets") == 0o700
    assert keep_secrets(folder, [DEMO]).index_key == key.index_key
    assert {file: file.read_text() for file in files} == before


def test_derived_secrets_follow_from_the_fleet_key(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    key = keep_secrets(folder, [PoolWorkers("serving/qwen", "qwen3", ("qwen-0", "qwen-1"))])
    for worker in ("qwen-0", "qwen-1"):
        token = folder.report_token_file("serving/qwen", worker).read_text()
        assert token == key.report_token("serving/qwen", worker)
    index_key = fleet_index_key(key.index_key, "serving", "qwen3")
    assert parse_index_key(folder.index_key_file("serving/qwen").read_bytes()) == index_key
    assert folder.worker_key_file("serving/qwen").read_text() == key.worker_key("serving/qwen")
    assert FleetKey.parse(folder.fleet_key_file.read_text()).index_key == key.index_key


def test_a_readable_secret_is_closed_again(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    keep_secrets(folder, [])
    folder.admin_token_file.chmod(0o644)
    keep_secrets(folder, [])
    assert mode(folder.admin_token_file) == 0o600


def test_an_unsound_fleet_key_is_named_and_kept(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    folder.fleet_key_file.write_text("nonsense")
    with pytest.raises(DataFolderError, match=r"fleet\.key: a fleet key is 32 bytes"):
        keep_secrets(folder, [])
    assert folder.fleet_key_file.read_text() == "nonsense"


def test_a_folder_has_one_owner_at_a_time(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    with sole_owner(folder), pytest.raises(DataFolderError, match=f"process {os.getpid()}"), sole_owner(folder):
        pass
    with sole_owner(folder):
        pass


def test_a_killed_owner_leaves_the_folder_free(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cachefleet_local.fleet.data_folder import *\n"
        f"context = sole_owner(DataFolder(Path({str(tmp_path)!r}))); context.__enter__()\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout
    assert owner.stdin
    assert owner.stdout.readline() == b"held\n"
    with pytest.raises(DataFolderError, match=f"process {owner.pid}"), sole_owner(open_folder(tmp_path)):
        pass
    owner.kill()
    owner.wait()
    owner.stdin.close()
    owner.stdout.close()
    with sole_owner(open_folder(tmp_path)):
        pass


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from cachefleet_local.fleet.data_folder import *\n"
        f"context = run_folder(DataFolder(Path({str(tmp_path)!r}))); run = context.__enter__()\n"
        "(run / 'socket').touch(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    folder = open_folder(tmp_path)
    left = folder.run_link.readlink()
    assert (left / "socket").exists()
    with run_folder(folder) as run:
        assert not left.exists()
        assert (folder.run_link.readlink(), mode(run)) == (run, 0o700)
        (run / "more").touch()
    assert not run.exists()
    assert not folder.run_link.is_symlink()


@pytest.mark.parametrize(("name", "permissions"), [("mine", 0o700), ("cachefleet-shared", 0o755)])
def test_a_folder_that_no_run_made_is_not_removed(tmp_path: Path, name: str, permissions: int) -> None:
    other = tmp_path / name
    other.mkdir(mode=permissions)
    folder = open_folder(tmp_path / "data")
    folder.run_link.symlink_to(other)
    with run_folder(folder) as run:
        assert folder.run_link.readlink() == run != other
    assert other.is_dir()


def test_a_file_in_place_of_the_link_is_said_and_kept(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    folder.run_link.write_text("mine")
    with pytest.raises(DataFolderError, match="run: File exists"), run_folder(folder):
        pass
    assert folder.run_link.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataFolderError, match="cannot use the data folder"):
        open_folder(tmp_path / "file" / "data")


def test_a_write_is_whole_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old", mode=0o600)
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\udc80")
    assert path.read_text() == "old"
    assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_logs_of_the_run_before_are_kept_aside(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    for text in ("first", "second"):
        turn_logs(folder)
        folder.log("a.engine").write_text(text)
    turn_logs(folder)
    assert [(log.name, log.read_text()) for log in folder.logs.iterdir()] == [("a.engine.log.1", "second")]
