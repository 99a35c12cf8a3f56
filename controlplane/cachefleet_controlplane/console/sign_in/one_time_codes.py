"""Codes for links that sign in once: each stands for a token, for some minutes, in memory."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final

from cachefleet_runtime.expiring_cache import Expiring

LIFE_SECONDS: Final = 600.0
MAX_CODES: Final = 64
_CODE_BYTES: Final = 32


class OneTimeCodes:
    """At most MAX_CODES that were not used yet; of more the oldest ends. ``clock`` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._codes: Expiring[bytes, str] = Expiring(MAX_CODES, clock)

    def make(self, token: str) -> str:
        """A code for a token that was checked; good once, for LIFE_SECONDS."""
        code = secrets.token_urlsafe(_CODE_BYTES)
        self._codes.put(_digest(code), token, seconds=LIFE_SECONDS)
        return code

    def peek(self, code: str) -> str | None:
        """The token of a code, which stays good; None where it is not (any more)."""
        return self._codes.get(_digest(code)) or None

    def take(self, code: str) -> str | None:
        """The token of a code, which is used up by that; None where it is not good (any more)."""
        token = self.peek(code)
        if token is not None:
            self._codes.put(_digest(code), "", seconds=0)
        return token


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
