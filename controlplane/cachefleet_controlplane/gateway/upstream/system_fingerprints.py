"""The system fingerprint each worker last signed with, so that we can put it back where we moved it."""

from __future__ import annotations

from typing import Final

MAX_WORKERS: Final = 4096


class Fingerprints:
    """JSON text by worker address, b"" for a worker that signs with none; bounded."""

    def __init__(self, limit: int = MAX_WORKERS) -> None:
        self._limit = limit
        self._known: dict[str, bytes] = {}

    def of(self, url: str) -> bytes | None:
        return self._known.get(url)

    def learn(self, url: str, fingerprint: bytes | None) -> None:
        if fingerprint is None or self._known.get(url) == fingerprint:
            return
        self._known[url] = fingerprint
        if len(self._known) > self._limit:
            del self._known[next(iter(self._known))]

    def forget(self, url: str) -> None:
        """The worker at this address may be another one now."""
        self._known.pop(url, None)
