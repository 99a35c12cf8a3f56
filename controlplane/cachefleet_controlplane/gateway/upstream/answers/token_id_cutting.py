"""Cuts token ids out of an answer's JSON, or counts them, without decoding it. Pure."""

from __future__ import annotations

from typing import Final

IDS: Final = b'token_ids":['
_PROMPT: Final = b"prompt_"
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


def count_ids(data: bytes) -> tuple[int, int]:
    """How many ids the JSON's lists have: those produced, and those of the longest prompt."""
    produced = prompt = at = 0
    while (name := data.find(IDS, at)) >= 0 and (end := data.find(b"]", name)) >= 0:
        at = end + 1
        ids = 0 if end == name + len(IDS) else data.count(b",", name, end) + 1
        if data.endswith(_PROMPT, 0, name):
            prompt = max(prompt, ids)
        else:
            produced += ids
    return produced, prompt
