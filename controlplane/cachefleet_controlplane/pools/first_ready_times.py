"""When each pool of a file first had a ready worker: what a pool's status says in Kubernetes, kept in a file here.

A model's name belongs to the pool that had a ready worker first (``cachefleet_core.pool.model_names``), for as long as
that pool is declared, also over restarts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

logger = logging.getLogger(__name__)

NAME: Final = "first-ready.json"
MAX_BYTES: Final = 4 * 1024 * 1024
"""A larger file is not read: no list of pools makes one."""


class FirstReadyTimes:
    """Times in UTC by pool ("namespace/name"), as a status has them; without a ``file`` they end with the process."""

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._times = _read(file)

    def note(self, declared: Collection[str], ready: Collection[str]) -> Mapping[str, str]:
        """The times of all declared pools that have one; pools that are ``ready`` have one from now on."""
        kept = {pool: at for pool, at in self._times.items() if pool in declared}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock()))
        times = dict.fromkeys((pool for pool in declared if pool in ready), now) | kept
        if times != self._times:
            self._times = times
            self._save()
        return times

    def _save(self) -> None:
        """Where that fails, a restart may give a name to another pool."""
        if self._file is None:
            return
        new = self._file.with_name(f"{self._file.name}.new")
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_bytes(msgspec.json.format(msgspec.json.encode(self._times)))
            new.replace(self._file)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._file.name, error.strerror or error)


def _read(file: Path | None) -> dict[str, str]:
    """What was kept; nothing where there is no such file, or it cannot be read."""
    try:
        if file is None or file.stat().st_size > MAX_BYTES:
            return {}
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("%s is not read, names may belong to other pools than before: %s", NAME, error)
        return {}
