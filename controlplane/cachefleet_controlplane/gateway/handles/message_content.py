"""What of a message of ``/v1/messages`` shapes its prompt: clients move cache markers from turn to turn.

vLLM reads no ``cache_control``, and takes a list of one text for that text (0.28 to 0.32,
vllm/entrypoints/anthropic/serving.py). Nothing below a block's own members is looked at: a tool's input may have a
member of that name.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.wire.json_members import READ_ERRORS

_MARKER: Final = "cache_control"
_TEXT: Final = b'"text"'
_EMPTY: Final = b'""'

_message = msgspec.json.Decoder(dict[str, Raw])
_blocks = msgspec.json.Decoder(list[dict[str, Raw]])
_encode = msgspec.json.Encoder().encode


def shaping(item: Raw) -> bytes | Raw:
    """Return a message without its blocks' markers, and one text alone as that text; any other as it is."""
    try:
        message = _message.decode(item)
        blocks = _blocks.decode(message["content"])
    except (KeyError, *READ_ERRORS):  # its content is text, or it is for vLLM to refuse
        return item
    plain = [{name: value for name, value in block.items() if name != _MARKER} for block in blocks]
    return _encode(message | {"content": _lone_text(plain) or plain})


def _lone_text(blocks: list[dict[str, Raw]]) -> Raw | None:
    """The text of a list of one block that is text and nothing else, where there is any."""
    if len(blocks) != 1 or blocks[0].keys() != {"type", "text"} or bytes(blocks[0]["type"]) != _TEXT:
        return None
    text = bytes(blocks[0]["text"])
    return Raw(text) if text.startswith(b'"') and text != _EMPTY else None
