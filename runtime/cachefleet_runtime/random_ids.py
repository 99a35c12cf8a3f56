"""Random names; one read of the system's random numbers serves many of them, because reads are slow."""

from __future__ import annotations

import os
import secrets
import time
from typing import Final

_READ_BYTES: Final = 3072
_TIME_DIGITS: Final = 8


class RandomIds:
    """Names of ``size`` bytes as hexadecimal, random after the first four; for one process, not for one that forks.

    They begin with the time in seconds of the last read of random numbers: a database's index of names that grow is
    written in one place, where one of random names is written everywhere.
    """

    def __init__(self, size: int = 12) -> None:
        self._digits = 2 * size - _TIME_DIGITS
        self._text = ""
        self._at = 0
        self._process = 0
        self._time = ""

    def next(self) -> str:
        """The next random name."""
        end = self._at + self._digits
        if end > len(self._text) or self._process != os.getpid():
            self._text, self._process = secrets.token_hex(_READ_BYTES), os.getpid()
            self._time = f"{int(time.time()):0{_TIME_DIGITS}x}"
            self._at, end = 0, self._digits
        start, self._at = self._at, end
        return self._time + self._text[start:end]
