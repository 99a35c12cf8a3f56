from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cachefleet_local.fleet.port_promises import HELD_SECONDS, PortPromises, is_private, open_promises

PORT = 12_345
TAKER = """
import json, sys
from cachefleet_local.fleet.ports import take_ports

print("ready", flush=True)
sys.stdin.readline()
print(json.dumps([port for _ in range(20) for port in take_ports(dict.fromkeys("abcdefghij", 0)).values()]), flush=True)
sys.stdin.readline()
"""
HOLDER = """
import sys
from pathlib import Path
from cachefleet_local.fleet.port_promises import open_promises

with open_promises(Path(sys.argv[1])) as promises:
    print(promises.claim(int(sys.argv[2])), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "promises"


@pytest.fixture
def promises(folder: Path) -> Iterator[PortPromises]:
    with open_promises(folder) as opened:
        yield opened


@contextmanager
def running(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that ends once its input does."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_that_choose_at_once_get_different_ports() -> None:
    with ExitStack() as stack:  # in the promises of all: they must not touch ports that other tests have chosen
        takers = [stack.enter_context(running(TAKER)) for _ in range(4)]
        assert {said(taker) for taker in takers} == {"ready"}
        for taker in takers:
            tell(taker)
        ports = [port for taker in takers for port in json.loads(said(taker))]
        assert len(set(ports)) == len(ports) == 800


def test_a_promise_of_a_running_process_is_kept_and_ends_with_it(folder: Path, promises: PortPromises) -> None:
    with running(HOLDER, folder, PORT) as holder:
        assert said(holder) == "True"
        assert not promises.claim(PORT)
        holder.send_signal(signal.SIGKILL)
    assert promises.claim(PORT)


def test_what_is_promised_is_not_chosen_again_by_the_same_process(promises: PortPromises) -> None:
    assert promises.claim(PORT)
    assert not promises.claim(PORT)
    assert promises.claim(PORT + 1)


@pytest.mark.parametrize("seconds", [-HELD_SECONDS - 60, HELD_SECONDS + 60], ids=["long ago", "clock set back"])
def test_an_old_promise_is_taken_over(folder: Path, promises: PortPromises, seconds: float) -> None:
    assert promises.claim(PORT)
    os.utime(folder / str(PORT), (time.time() + seconds,) * 2)
    assert promises.claim(PORT)
    assert not promises.claim(PORT)


@pytest.mark.parametrize("text", ["", "no process", "9" * 25, "\0"])
def test_a_promise_to_no_process_is_taken_over(folder: Path, promises: PortPromises, text: str) -> None:
    (folder / str(PORT)).write_text(text)
    assert promises.claim(PORT)
    assert (folder / str(PORT)).read_text() == str(os.getpid())


def test_a_given_port_is_promised_whoever_had_it(folder: Path, promises: PortPromises) -> None:
    (folder / str(PORT)).write_text(str(os.getppid()))
    promises.renew(PORT)
    assert (folder / str(PORT)).read_text() == str(os.getpid())


def test_a_port_on_which_another_process_decides_is_left_to_it(folder: Path, promises: PortPromises) -> None:
    with (folder / str(PORT)).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not promises.claim(PORT)
    assert promises.claim(PORT)


def test_stale_promises_are_removed_and_others_kept(folder: Path, promises: PortPromises) -> None:
    assert promises.claim(PORT)
    (folder / str(PORT + 1)).write_text("no process")
    promises.clean()
    assert [file.name for file in folder.iterdir()] == [str(PORT)]


def test_a_link_in_a_promises_place_is_not_followed(folder: Path, promises: PortPromises, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (folder / str(PORT)).symlink_to(precious)
    assert promises.claim(PORT)
    assert precious.read_text() == "kept"


def test_the_folder_is_the_users_alone(folder: Path, promises: PortPromises) -> None:
    assert promises.claim(PORT)
    assert is_private(folder.stat(), os.geteuid())
    assert (folder / str(PORT)).stat().st_mode & 0o777 == 0o600


def _linked(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def _foreign(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder to another user")
    folder.mkdir(mode=0o700)
    os.chown(folder, 65_534, -1)


MADE: dict[str, Callable[[Path], object]] = {
    "open to others": lambda folder: folder.mkdir(mode=0o755),
    "of another user": _foreign,
    "a link": _linked,
    "a file": Path.touch,
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_folder_that_is_not_the_users_alone_is_not_used(tmp_path: Path, made: Callable[[Path], object]) -> None:
    folder = tmp_path / "promises"
    made(folder)
    with open_promises(folder) as promises:
        assert promises.claim(PORT)
        assert promises.claim(PORT)
        promises.clean()
    assert not list(tmp_path.rglob(str(PORT)))


def test_another_users_folder_is_not_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert is_private(tmp_path.stat(), os.geteuid())
    assert not is_private(tmp_path.stat(), os.geteuid() + 1)


def test_where_no_folder_can_be_made_ports_are_free_to_choose(tmp_path: Path) -> None:
    with open_promises(tmp_path / "missing" / "promises") as promises:
        assert promises.claim(PORT)
