"""Whether a store without API keys serves everybody: what it says itself, and the file beside it that outlives it.

A store that was lost and made anew is empty, as is one in which nobody ever made a key. The store says in its row of
``tenancy`` whether keys were made in it; the marker says so where that row is gone, and its copies in another folder
and in the cluster where that folder was emptied.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from cachefleet_controlplane.store.store_errors import StoreError

SUFFIX: Final = ".access"
_MAX_BYTES: Final = 64


class StoreAccess(StrEnum):
    """What a store says of itself."""

    UNSAID = ""
    """No key was ever made in it."""
    KEYED = "keyed"
    OPEN = "open"
    """Somebody opened it to requests without a key, after keys were made or lost."""


class Mark(StrEnum):
    """What the marker says of the store beside it."""

    ABSENT = ""
    UNKEYED = "unkeyed"
    """It was read, and no key was ever made in it."""
    KEYED = "keyed"
    LOST = "lost"
    """It was moved aside because it was corrupt."""
    UNREADABLE = "unreadable"


class ClosedReason(StrEnum):
    """Why nobody is served without a key although there is none."""

    NO = ""
    """Everybody is served."""
    UNREAD = "unread"
    KEYED = "keyed"
    """Keys were made, and deleted since."""
    LOST = "lost"


_OPEN: Final = frozenset({Mark.ABSENT, Mark.UNKEYED})
"""Marks by which nobody is kept out."""


class MarkCopy(Protocol):
    """A copy of a marker that is no file. Calls block; StoreError where it cannot be read or written."""

    def read(self) -> Mark: ...
    def write(self, mark: Mark) -> None: ...


class AccessMarker:
    """One marker file, and copies of it elsewhere, which say something only while it keeps somebody out. Calls block.

    Without paths there are none.
    """

    def __init__(self, file: Path | None, copy: Path | None = None, cluster: MarkCopy | None = None) -> None:
        self._file = file
        self._copy = copy
        self._cluster = cluster

    def read(self) -> Mark:
        """What it says, or a copy where that alone keeps somebody out; UNREADABLE where that cannot be told.

        StoreError where there is no file and the cluster's copy cannot be read.
        """
        own, copied = _read(self._file), _read(self._copy)
        if own not in _OPEN:
            return own
        return copied if copied not in _OPEN else self._read_cluster(own)

    def _read_cluster(self, own: Mark) -> Mark:
        if self._cluster is None:
            return own
        try:
            copied = self._cluster.read()
        except StoreError:
            if own is Mark.ABSENT:
                raise
            return own
        return own if copied in _OPEN else copied

    def says(self, mark: Mark) -> bool:
        """Whether all say ``mark``. StoreError."""
        copies = [] if self._copy is None else [_read(self._copy)]
        copies += [] if self._cluster is None else [self._cluster.read()]
        return _read(self._file) is mark and all(each is mark or {each, mark} <= _OPEN for each in copies)

    def write(self, mark: Mark) -> None:
        """Replace what all say, on the disk before this returns; one writer at a time. StoreError."""
        if self._cluster is not None:
            self._cluster.write(Mark.ABSENT if mark in _OPEN else mark)
        if self._copy is not None:
            _write(self._copy, None if mark in _OPEN else mark)
        if self._file is not None:
            _write(self._file, mark)


def _read(path: Path | None) -> Mark:
    if path is None:
        return Mark.ABSENT
    try:
        with path.open("rb") as file:
            return Mark(file.read(_MAX_BYTES).decode().strip() or Mark.UNREADABLE)
    except (FileNotFoundError, NotADirectoryError):
        return Mark.ABSENT
    except (OSError, ValueError):
        return Mark.UNREADABLE


def _write(path: Path, mark: Mark | None) -> None:
    """Replace the file, or remove it for None. StoreError."""
    new = path.with_name(path.name + ".new")
    try:
        if mark is None and not path.exists():
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.parent) as folder:
            if mark is None:
                path.unlink(missing_ok=True)
            else:
                with new.open("w") as file:
                    file.write(f"{mark}\n")
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(path)
            os.fsync(folder)
    except OSError as error:
        raise StoreError("unavailable", f"{path.name} cannot be written: {error.strerror or error}") from error


def closed(access: StoreAccess, mark: Mark, *, had_keys: bool) -> ClosedReason:
    """Why a store that says ``access`` is closed while it has no key; ``had_keys``: this process has seen it closed."""
    if access is StoreAccess.OPEN:
        return ClosedReason.NO
    if access is StoreAccess.KEYED:
        return ClosedReason.KEYED
    return ClosedReason.LOST if had_keys or mark not in {Mark.ABSENT, Mark.UNKEYED} else ClosedReason.NO


def mark_of(access: StoreAccess, why: ClosedReason) -> Mark:
    """What the marker has to say of such a store."""
    if why is ClosedReason.LOST:
        return Mark.LOST
    return Mark.KEYED if access is StoreAccess.KEYED else Mark.UNKEYED


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Keep other writers out of a folder, of other processes too; its file descriptor."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
