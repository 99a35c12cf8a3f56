"""System fingerprints of workers' answers, remembered to be put back where routing would change them."""

from __future__ import annotations

from typing import Final

MAX_WORKERS: Final = 4096


class Fingerprints:
    """System fingerprints, as JSON, by worker URL; b"" for a worker without one; bounded."""

    def __init__(self, limit: int = MAX_WORKERS) -> None:
        self._limit = limit
        self._known: dict[str, bytes] = {}

    def of(self, url: str) -> bytes | None:
        """Return a worker's fingerprint; None where it is not known."""
        return self._known.get(url)

    def learn(self, url: str, fingerprint: bytes | None) -> None:
        """Remember a worker's fingerprint; None changes nothing. Beyond the limit the oldest entry is dropped."""
        if fingerprint is None or self._known.get(url) == fingerprint:
            return
        self._known[url] = fingerprint
        if len(self._known) > self._limit:
            del self._known[next(iter(self._known))]

    def forget(self, url: str) -> None:
        """Drop a worker's fingerprint: another engine may be at its URL now."""
        self._known.pop(url, None)
