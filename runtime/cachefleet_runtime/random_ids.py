"""Random names, many of one read of the system's random numbers: a read for each costs more than all else of it."""

from __future__ import annotations

import os
import secrets
from typing import Final

_READ_BYTES: Final = 3072


class RandomIds:
    """Names of ``size`` random bytes, as hexadecimal; for one process, not for one that forks."""

    def __init__(self, size: int = 12) -> None:
        self._size = size
        self._text = ""
        self._at = 0
        self._process = 0

    def next(self) -> str:
        """Another one."""
        end = self._at + 2 * self._size
        if end > len(self._text) or self._process != os.getpid():
            self._text, self._process = secrets.token_hex(_READ_BYTES), os.getpid()
            self._at, end = 0, 2 * self._size
        start, self._at = self._at, end
        return self._text[start:end]
