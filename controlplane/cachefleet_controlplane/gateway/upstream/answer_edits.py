"""Cuts token ids out of an answer's JSON, and remembers the system fingerprints of workers."""

from __future__ import annotations

from typing import Final

IDS: Final = b'token_ids":['
_CHOICE: Final = b'"choices":[{'
_PARAMETERS: Final = b'"kv_transfer_params":{'
"""Members of a KV connector, which may have any name, ``token_ids`` included."""


def can_be_cut(data: bytes) -> bool:
    """Whether every list of token ids in an answer or event is a choice's or a prompt's."""
    return _CHOICE in data and _PARAMETERS not in data


def cut_ids(data: bytes) -> bytes:
    """Return the JSON with null for every list of token ids, and every other byte unchanged."""
    pieces: list[bytes] = []
    at = 0
    while (name := data.find(IDS, at)) >= 0 and (end := data.find(b"]", name)) >= 0:
        pieces += (data[at : name + len(IDS) - 1], b"null")
        at = end + 1
    return b"".join((*pieces, data[at:]))


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
