"""Which policy is in force on a worker: pure, but for the file that one may be read from."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from cachefleet_core.reports import Policy

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]


def supersedes(new: Policy, current: Policy | None, pool: str) -> bool:
    """Whether ``new`` is for this pool and not older than ``current``; a pool made anew starts its generations anew."""
    if new.pool != pool:
        return False
    return current is None or new.uid != current.uid or new.generation >= current.generation


def read_policy(path: Path) -> Policy:
    """The policy in a JSON file. OSError where it cannot be read, ValueError where it is no policy."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Policy)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error


class PolicyFile:
    """A policy's file, looked at again and again: the operator or a supervisor writes it anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self._problem = ""

    def changed(self) -> Policy | None:
        """The policy where the file is another one than before; what cannot be used is said once and passed over."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)  # before the content: nothing in between is missed
            if stamp == self._stamp:
                return None
            policy = read_policy(self._path)
        except (OSError, ValueError) as error:
            self._complain(str(error))
            return None
        self._stamp, self._problem = stamp, ""
        return policy

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("policy file not usable, the last policy stays", extra={"error": problem})
        self._problem = problem
