"""Ports reserved for processes of one user until they listen on them.

A promise is a file named by its port, with the id of the process that has it. It holds while that process runs, ten
minutes at most, and is read and written under the file's lock. The files are in a folder that only the user can enter;
where there can be none, nothing is promised and every port may be chosen, as before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

HELD_SECONDS: Final = 600.0
"""As long as a fleet waits for its workers: some listen only once their model is loaded."""
CLEANED: Final = 32
"""How many promises are looked at for ones to remove, each time."""
_LONGEST_ID: Final = 20
_NO_LINKS: Final = os.O_NOFOLLOW | os.O_CLOEXEC


class PortPromises:
    """The promises in one folder, by its descriptor; None for no folder, which keeps nothing."""

    def __init__(self, folder: int | None) -> None:
        self._folder = folder

    def claim(self, port: int) -> bool:
        """Promise the port to this process. False where it is promised already, to this process or another."""
        return self._write(port, over=False)

    def renew(self, port: int) -> None:
        """Promise the port to this process, whoever had it."""
        self._write(port, over=True)

    def clean(self) -> None:
        """Remove some promises that hold no more."""
        if self._folder is None:
            return
        with suppress(OSError), os.scandir(self._folder) as entries:
            names = [entry.name for entry in entries]
            for name in random.sample(names, min(CLEANED, len(names))):
                _remove_stale(self._folder, name)

    def _write(self, port: int, *, over: bool) -> bool:
        if self._folder is None:
            return True
        try:
            with _locked(self._folder, str(port), os.O_CREAT) as file:
                if _holds(file) and not over:
                    return False
                os.truncate(file, 0)
                os.pwrite(file, b"%d" % os.getpid(), 0)
        except BlockingIOError:  # another process decides on this port right now
            return False
        except OSError:  # such as a full disk: the port is no worse without a promise
            return True
        return True


@contextmanager
def open_promises(folder: Path | None = None) -> Iterator[PortPromises]:
    """The promises in a folder; in this user's own one below the system's temporary folder where none is given."""
    descriptor = _private_folder(folder)
    try:
        yield PortPromises(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_private(status: os.stat_result, user: int) -> bool:
    """Whether only that user can read and write the folder."""
    return status.st_uid == user and not stat.S_IMODE(status.st_mode) & 0o077


def _private_folder(folder: Path | None) -> int | None:
    """The folder's descriptor; the folder is made where it is missing. None where it is not the user's alone."""
    with suppress(OSError):
        path = folder or Path(tempfile.gettempdir()) / f"cachefleet-ports-{os.geteuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINKS)
        if is_private(os.fstat(descriptor), os.geteuid()):
            return descriptor
        os.close(descriptor)
    return None


@contextmanager
def _locked(folder: int, name: str, flags: int = 0) -> Iterator[int]:
    """A promise's file under its lock. BlockingIOError where another has the lock, or has removed the file."""
    file = os.open(name, os.O_RDWR | _NO_LINKS | flags, 0o600, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(file).st_nlink:
            raise BlockingIOError(errno.EAGAIN, "removed before it was locked", name)
        yield file
    finally:
        os.close(file)


def _holds(file: int) -> bool:
    """A time to come is no better than one long ago: the clock was set back."""
    age = time.time() - os.fstat(file).st_mtime
    return abs(age) < HELD_SECONDS and _runs(os.pread(file, _LONGEST_ID, 0))


def _runs(process: bytes) -> bool:
    try:
        os.kill(int(process), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    return True


def _remove_stale(folder: int, name: str) -> None:
    with suppress(OSError), _locked(folder, name) as file:
        if not _holds(file):
            os.unlink(name, dir_fd=folder)
