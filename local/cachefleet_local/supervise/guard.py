"""Runs one command and kills all its processes at the end, however its owner or the command ends.

Started by path with ``python -I -S``, so it imports the standard library only, starts in milliseconds and takes a few
MiB. It reads the pipe that its owner holds open as standard input: end of file means that the owner is gone, also
after ``kill -9``. It is the subreaper of every process below it, so processes that outlive their parent (an engine
core after its API server was killed) become its children and are killed too.

Descriptors that the owner passes on go to the command, and are closed here.

The exit status is the command's own, 128 + n after signal n. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

SET_PARENT_DEATH_SIGNAL: Final = 1
SET_CHILD_SUBREAPER: Final = 36
_SWEEP_SECONDS: Final = 0.02
_MAX_SWEEPS: Final = 250


def main(arguments: list[str]) -> int:
    """``guard.py GRACE COMMAND ...``: run the command until it ends, a signal asks for it, or the owner is gone."""
    grace, passed = float(arguments[0]), _passed()
    prctl(SET_CHILD_SUBREAPER, 1)
    wake = _signals()
    prepare = _die_with_the_guard(os.getpid())
    child = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL, pass_fds=passed, preexec_fn=prepare)  # noqa: S603, PLW1509 - the owner's command, as a list; no threads here
    for descriptor in passed:
        os.close(descriptor)
    try:
        _watch(child, wake, grace=grace)
    finally:
        sweep(os.getpid())
    status = child.wait()
    return status if status >= 0 else 128 - status


def descendants(root: int) -> list[int]:
    """Every process below ``root``, zombies excluded, as /proc shows it now."""
    children: dict[int, list[int]] = {}
    for pid, parent, state in _processes():
        if state != "Z":
            children.setdefault(parent, []).append(pid)
    found, look = [], [root]
    while look:
        below = children.get(look.pop(), [])
        found += below
        look += below
    return found


def _passed() -> list[int]:
    """Descriptors beyond the standard ones that the owner passes on to the command."""
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return [number for number in numbers if number > 2 and _is_inheritable(number)]


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # that of the listing itself, which is over
        return False


def _signals() -> int:
    """A descriptor that becomes readable when a child ends or a signal asks for the end."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return read


def _die_with_the_guard(guard: int) -> Callable[[], None]:
    def prepare() -> None:
        prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != guard:  # it died before the line above
            os._exit(1)

    return prepare


def _watch(child: subprocess.Popen[bytes], wake: int, *, grace: float) -> None:
    """Return when the child has ended; terminate it when asked, or when standard input ends; kill it after grace."""
    deadline: float | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(wake, selectors.EVENT_READ)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while child.poll() is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = {key.fd for key, _ in selector.select(left)}
            _reap_adopted(child.pid)
            if deadline is not None and time.monotonic() >= deadline:
                child.kill()
                deadline = None
            if _asked_to_end(ready, wake) and deadline is None:
                deadline = time.monotonic() + grace
                child.terminate()
            if sys.stdin.fileno() in ready:
                selector.unregister(sys.stdin.fileno())


def _reap_adopted(command: int) -> None:
    """Take the status of ended processes that outlived their parent; that of the command itself is Popen's to take."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while (ended := os.waitid(os.P_ALL, 0, flags)) is not None and ended.si_pid != command:
        os.waitpid(ended.si_pid, 0)


def _asked_to_end(ready: set[int], wake: int) -> bool:
    numbers = os.read(wake, 64) if wake in ready else b""
    return sys.stdin.fileno() in ready or any(number != signal.SIGCHLD for number in numbers)


def sweep(root: int) -> None:
    """Kill every process below ``root`` until none is left; one that forks meanwhile is killed in the next round."""
    for _ in range(_MAX_SWEEPS):
        left = descendants(root)
        for pid in left:
            _kill(pid)
        _reap()
        if not left:
            return
        time.sleep(_SWEEP_SECONDS)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap() -> None:
    # The command's own status is kept by Popen: it has been waited for before any sweep.
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def _processes() -> Iterator[tuple[int, int, str]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # ended meanwhile
            continue
        state, parent, *_ = stat[stat.rindex(")") + 2 :].split()  # a name may hold spaces and parentheses
        yield int(entry.name), int(parent), state


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; ``option`` is one of <sys/prctl.h>."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
