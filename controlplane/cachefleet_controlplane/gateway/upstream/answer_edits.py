"""Edits of a worker's answer: token ids cut out of its JSON, the system fingerprint put back. Pure."""

from __future__ import annotations

from typing import Final

IDS: Final = b'token_ids":['
_CHOICE: Final = b'"choices":[{'
_PARAMETERS: Final = b'"kv_transfer_params":{'
"""What a connector puts there is its own, whatever it is named."""


def can_be_cut(data: bytes) -> bool:
    """An answer or an event in which every list of token ids is one of a choice's or a prompt's."""
    return _CHOICE in data and _PARAMETERS not in data


def cut_ids(data: bytes) -> bytes:
    """With null for every list of token ids, and every other byte as it was."""
    pieces: list[bytes] = []
    at = 0
    while (name := data.find(IDS, at)) >= 0 and (end := data.find(b"]", name)) >= 0:
        pieces += (data[at : name + len(IDS) - 1], b"null")
        at = end + 1
    return b"".join((*pieces, data[at:]))


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
