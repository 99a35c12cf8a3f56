"""What a node that was killed leaves beside its namespaces: processes, their cgroups and its folder; removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from e2e.cluster.binaries import UnavailableError

CGROUPS: Final = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def swept(marker: Path) -> Iterator[None]:
    """Nothing of a node before the block, nothing after it.

    ``marker`` is there while a node is, and names its folder once there is one: a node that was killed is cleared away
    by the next. UnavailableError where somebody else's Kubernetes runs on this machine.
    """
    if _in_groups() and not marker.exists():
        raise UnavailableError("another Kubernetes seems to run on this machine: processes are in cgroups kubepods")
    sweep(marker)
    marker.touch()
    try:
        yield
    finally:
        sweep(marker)


def sweep(marker: Path) -> None:
    """End what runs in pods and beside them, and remove their cgroups and files."""
    _kill(_in_groups)
    if marker.exists():
        _sweep_folder(marker.read_text())
    _remove_cgroups()
    marker.unlink(missing_ok=True)


def _sweep_folder(folder: str) -> None:
    if not folder:
        return
    _kill(lambda: _named(folder))
    shutil.rmtree(folder, ignore_errors=True)


def _kill(find: Callable[[], set[int]]) -> None:
    """Processes, until there are none left to find."""
    for _ in range(50):
        if not (found := find()):
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _in_groups() -> set[int]:
    return {int(pid) for path in _groups() for pid in (path / "cgroup.procs").read_text().split()}


def _named(folder: str) -> set[int]:
    """Processes that were started with the folder's name: containerd's helpers outlive it."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{folder}/" in path.read_bytes().decode(errors="replace"):
                found.add(int(path.parent.name))
    return found - {os.getpid()}


def _remove_cgroups() -> None:
    for path in sorted(_groups(), key=lambda path: len(path.parts), reverse=True):
        _quietly("rmdir", str(path))


def _groups() -> list[Path]:
    tops = list(CGROUPS.glob("*/kubepods")) + list(CGROUPS.glob("kubepods"))
    return [path for top in tops for path in (top, *top.rglob("*")) if path.is_dir()]


def _quietly(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)
