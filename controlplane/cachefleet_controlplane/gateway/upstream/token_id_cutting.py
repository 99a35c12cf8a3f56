"""Cuts token ids out of an answer's JSON without decoding it. Pure."""

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
