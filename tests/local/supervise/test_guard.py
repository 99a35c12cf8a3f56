"""The guard with real processes: whatever dies first, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cachefleet_local.supervise import guard

STUBBORN = "import signal,time\nfor s in (15,2,1): signal.signal(s, signal.SIG_IGN)\n"
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", {child!r}], start_new_session=True)
open({note!r}, "w").write(str(child.pid))
{then}
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, grace: float = 5.0) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", guard.__file__, str(grace), sys.executable, "-S", "-c", code]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdin:
            process.stdin.close()


def family(note: Path, *, then: str, child: str = "import time; time.sleep(60)") -> str:
    return FAMILY.format(child=child, note=str(note), then=then)


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def grandchild(note: Path) -> int:
    wait_until(lambda: note.exists() and note.read_text() != "")
    return int(note.read_text())


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("code", "status"), [("", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_exit_status_is_the_commands(start: Start, code: str, status: int) -> None:
    assert start(code).wait(10) == status


def test_a_grandchild_in_its_own_session_goes_with_a_command_that_ended(start: Start, tmp_path: Path) -> None:
    process = start(family(tmp_path / "pid", then="raise SystemExit(7)"))
    assert process.wait(10) == 7
    assert gone(grandchild(tmp_path / "pid"))


def test_end_of_standard_input_means_the_owner_is_gone(start: Start, tmp_path: Path) -> None:
    process = start(family(tmp_path / "pid", then="time.sleep(60)", child=STUBBORN + "time.sleep(60)"))
    pid = grandchild(tmp_path / "pid")
    assert process.stdin
    process.stdin.close()
    assert process.wait(10) == 128 + signal.SIGTERM
    assert gone(pid)


def test_a_command_that_does_not_end_is_killed_after_grace(start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = start(STUBBORN + f"open({str(ready)!r}, 'w').close()\ntime.sleep(60)", grace=0.2)
    wait_until(ready.exists)
    process.terminate()
    assert process.wait(10) == 128 + signal.SIGKILL


def test_a_killed_guard_takes_the_command_with_it(start: Start, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    process = start(f"import os,time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")
    pid = grandchild(note)
    process.kill()
    process.wait(10)
    wait_until(lambda: gone(pid))


def test_descendants_are_seen_through_generations(start: Start, tmp_path: Path) -> None:
    process = start(family(tmp_path / "pid", then="time.sleep(60)"))
    pid = grandchild(tmp_path / "pid")
    assert pid in guard.descendants(process.pid)
    assert pid in guard.descendants(os.getpid())


def test_a_process_that_outlived_its_parent_is_no_zombie_when_it_ends(start: Start, tmp_path: Path) -> None:
    note = tmp_path / "note"
    orphan = f'import subprocess, time\nsubprocess.run(["sh", "-c", "sleep 0.05 & echo $! > {note}"])\ntime.sleep(60)'
    guarding = start(orphan)
    pid = grandchild(note)
    wait_until(lambda: not psutil.pid_exists(pid))
    assert guarding.poll() is None
