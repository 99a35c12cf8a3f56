"""Temporary folders of one process, removed at its end, or, where it was killed, when the next one of its kind begins.

A folder's process holds a lock on a file in it, which the kernel lets go with the process. A folder without that file
is left alone: its process may be about to write it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LOCK: Final = "lock"
MAX_REMOVED: Final = 256
"""Folders of killed processes that one start removes; the next ones remove the rest."""
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def process_folder(prefix: str, parent: str | Path | None = None) -> Iterator[Path]:
    """A private folder in ``parent`` (default: that for temporary files) whose name begins with ``prefix``, after the
    removal of those that this user's killed processes have left there. OSError where none can be made.
    """
    place = Path(parent or tempfile.gettempdir())
    remove_left(place, prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) as name:
        held = _held_lock(Path(name))
        try:
            yield Path(name)
        finally:
            if held is not None:
                os.close(held)


def remove_left(place: Path, prefix: str) -> int:
    """Remove the folders of such a name whose process is gone; how many there were."""
    removed = 0
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if removed == MAX_REMOVED:
                break
            if entry.name.startswith(prefix) and _is_own(entry):
                removed += _remove_where_left(Path(entry.path))
    return removed


def _is_own(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder that only this user can read and write."""
    with suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        private = not stat.S_IMODE(status.st_mode) & 0o077
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and private
    return False


def _remove_where_left(folder: Path) -> bool:
    """Remove a folder where nobody holds its lock; whether it was."""
    with suppress(OSError):  # no lock yet, or a process holds it
        lock = os.open(folder / LOCK, _FLAGS)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
            return True
        finally:
            os.close(lock)
    return False


def _held_lock(folder: Path) -> int | None:
    """The descriptor of a folder's lock, which has its name only once it is held; None where files cannot be locked."""
    draft = folder / f"{LOCK}.draft"
    lock = os.open(draft, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(folder / LOCK)
    except OSError:
        os.close(lock)
        return None
    return lock
