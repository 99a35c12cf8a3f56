"""Token ids cut out of a worker's JSON without reading it. Pure.

A prompt's ids are most of an answer's bytes. No text looks like the name of a list of them: vLLM's JSON is compact, and
a quote inside text is escaped.
"""

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
