"""Namespaces in which a node's programs run: mounts, links, rules and kernel settings end with their last process.

Network, mounts and processes are the node's own, so nothing of them has to be put back on the machine, however the
node ends. Folders with fixed names (/run, /var/lib, ...) are layers in memory over the machine's; the kernel's settings
that a kubelet writes and that no namespace has are files in memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from e2e.cluster.processes import STOP_SECONDS, die_with_parent, end, spawn

LAYERED: Final = ("/etc", "/opt", "/var/lib", "/var/log")
"""Where containerd, the kubelet and CNI plugins write whatever they are told; /run is empty."""
SETTINGS: Final = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
"""Below /proc/sys: what a kubelet sets for the whole machine."""
READY: Final = "ready"


class NamespacesError(RuntimeError):
    """The namespaces could not be made; the message ends with what the shell said."""


class Namespaces:
    """Use as a context manager; all processes that were started inside are gone at its end, or when this one dies."""

    def __enter__(self) -> Self:
        command = [
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-ec",
            _first(),
        ]
        self._keeper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # system calls, no lock taken
        )
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline()
        if said.strip() != READY:
            words = said + self._keeper.communicate()[0]
            raise NamespacesError(f"a node's namespaces could not be made:\n{words}")
        (self.pid,) = _children(self._keeper.pid)
        return self

    def __exit__(self, *exc: object) -> None:
        # The first process of a namespace ends only after all others in it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._keeper.communicate()

    def run(self, *command: object) -> str:
        """What a command prints inside; CalledProcessError where it fails."""
        return subprocess.run(self._inside(command), capture_output=True, text=True, check=True).stdout

    def spawn(self, command: Sequence[object], log: Path) -> subprocess.Popen[bytes]:
        """Start a program inside; what it says goes to ``log``. It ends with the namespaces."""
        return spawn(self._inside(command), log)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Ask a program that was started inside to end, then insist."""
        # What was started is nsenter: it waits for the program and passes no signal on.
        for pid in _children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            end(process)

    def _inside(self, command: Sequence[object]) -> list[str]:
        entered = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--"]
        return [*entered, *map(str, command)]


def _first() -> str:
    """What the first process does: make the folders and settings, then collect what other processes leave."""
    lines = ["mount -t tmpfs -o mode=755 cachefleet /run", "ip link set lo up", "mkdir /run/layers /run/settings"]
    for folder in LAYERED:
        own = f"/run/layers{folder.replace('/', '-')}"
        options = f"lowerdir={folder},upperdir={own}/upper,workdir={own}/work"
        lines += [f"mkdir -p {own}/upper {own}/work", f"mount -t overlay -o {options} cachefleet {folder}"]
    for setting in SETTINGS:
        path, own = Path("/proc/sys", setting), f"/run/settings/{setting.replace('/', '-')}"
        lines += [f"if [ -e {path} ]; then cat {path} >{own}; mount --bind {own} {path}; fi"]
    lines += [f"echo {READY}", "while :; do sleep 3600; done"]
    return "\n".join(lines)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
