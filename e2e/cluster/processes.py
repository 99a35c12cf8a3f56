"""Processes that die with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

STOP_SECONDS = 10.0
LARGE_HEAPS = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
"""For programs in Go: a cluster of tests is small and has many requests, so memory is cheaper than processor time."""


def spawn(command: Sequence[object], log: Path) -> subprocess.Popen[bytes]:
    """Start a program; what it says goes to ``log``."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **LARGE_HEAPS},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_begin,  # noqa: PLW1509  # system calls, no lock taken
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask, then insist."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent ends, however it ends."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def step_aside() -> None:
    """Take processors and disks only while nobody else on this machine wants them; children do the same.

    In a session of its own where that is possible: where the kernel gives each an equal share, this one's is small.
    """
    with contextlib.suppress(PermissionError):  # the first of its group has a session already
        os.setsid()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _little_for_the_session()
    with contextlib.suppress(OSError):  # not installed
        subprocess.run(["ionice", "-c3", "-p", str(os.getpid())], check=False)


def _begin() -> None:
    die_with_parent()
    if os.sched_getscheduler(0) == os.SCHED_IDLE:
        _little_for_the_session()


def _little_for_the_session() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")
