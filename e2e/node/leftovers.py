"""What a kubelet and a kube-proxy leave on a machine, removed; and whether it is ours to remove."""

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
from e2e.node import network

CGROUPS: Final = Path("/sys/fs/cgroup")
TABLES: Final = ("filter", "mangle", "nat")
CHAINS: Final = "KUBE-"


@contextlib.contextmanager
def swept(marker: Path) -> Iterator[None]:
    """Nothing of a node before the block, nothing after it.

    ``marker`` is there while a node is, and names its folder once there is one: a node that was killed is cleared away
    by the next. UnavailableError where somebody else's Kubernetes runs on this machine.
    """
    if _rules() and not marker.exists():
        raise UnavailableError("another Kubernetes seems to run on this machine: iptables has chains named KUBE-*")
    sweep(marker)
    marker.touch()
    try:
        yield
    finally:
        sweep(marker)


def sweep(marker: Path) -> None:
    """End what runs in pods and beside them, and remove their cgroups, networks and files."""
    _kill(_in_groups)
    if marker.exists():
        _sweep_folder(marker.read_text())
        network.remove(network.namespaces())
    _remove_cgroups()
    network.down()
    for table in TABLES:
        _remove_rules(table)
    marker.unlink(missing_ok=True)


def _sweep_folder(folder: str) -> None:
    if not folder:
        return
    _kill(lambda: _named(folder))
    unmount(Path(folder))
    shutil.rmtree(folder, ignore_errors=True)


def unmount(folder: Path) -> None:
    """Everything mounted below a folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounted = [point for line in lines if (point := line.split()[4]).startswith(f"{folder}/")]
    for point in sorted(mounted, key=len, reverse=True):
        _quietly("umount", "--lazy", point)


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


def _rules() -> list[str]:
    return [rule for table in TABLES for rule in _listed(table) if rule.startswith(f"-N {CHAINS}")]


def _remove_rules(table: str) -> None:
    rules = [rule for rule in _listed(table) if CHAINS in rule]
    for rule in rules:
        kind, chain, *_ = rule.split()
        if kind == "-A" and not chain.startswith(CHAINS):
            subprocess.run(f"iptables -w -t {table} -D {rule[3:]}", shell=True, capture_output=True, check=False)  # noqa: S602
    chains = [rule.split()[1] for rule in rules if rule.startswith("-N ")]
    for action in ("-F", "-X"):
        for chain in chains:
            _quietly("iptables", "-w", "-t", table, action, chain)


def _listed(table: str) -> list[str]:
    done = subprocess.run(["iptables", "-w", "-t", table, "-S"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def _quietly(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)
