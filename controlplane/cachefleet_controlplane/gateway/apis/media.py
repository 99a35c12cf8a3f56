"""Whether a conversation holds more than text. Pure.

Messages are taken apart, so that a tool's argument of the name "image" is not mistaken for one; that costs a fraction
of searching their text. What is missed here the worker's renderer finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, is_list

_HINTS: Final = (b'"image', b'_image"', b'_audio"', b'_url"', b'_embeds"', b'_file"', b'"file"', b'"audio"', b'"video')
KINDS: Final = frozenset(
    {
        *("image_url", "image_embeds", "image_pil", "audio_url", "input_audio", "audio_embeds"),
        *("video_url", "video_embeds", "prompt_embeds", "input_image", "input_file", "input_video"),
        *("image", "document", "file", "audio", "video", "computer_screenshot"),
    }
)
"""Parts of a message that are no text; a part without a type is told by a member of such a name."""
_BARE: Final = frozenset({"image_url", "image_pil", "image_embeds", "audio_url", "input_audio", "audio_embeds"}) | {
    *("video_url", "video_embeds", "prompt_embeds")
}
_NESTED: Final = ("content", "output")
"""Members of a message or a part that may be a list of parts."""
_MAX_DEPTH: Final = 4

_items = msgspec.json.Decoder(list[Raw])
_members = msgspec.json.Decoder(Fields)
_parts = msgspec.json.Decoder(list[Fields])
_text = msgspec.json.Decoder(str)


def holds_media(messages: Raw | None) -> bool:
    """Of the list of messages, or of input items, of a body; False for anything that is no list."""
    if messages is None or not is_list(messages):
        return False
    return _in_list(messages, _MAX_DEPTH) and any(hint in bytes(messages) for hint in _HINTS)


def _in_list(raw: Raw, depth: int) -> bool:
    return depth > 0 and any(_in_part(part, depth) for part in _taken_apart(raw))


def _taken_apart(raw: Raw) -> Iterable[Fields]:
    """The items of a list that are objects."""
    try:
        return _parts.decode(raw)
    except READ_ERRORS:
        return list(_objects(raw))


def _objects(raw: Raw) -> Iterator[Fields]:
    try:
        items = _items.decode(raw)
    except READ_ERRORS:
        return
    for item in items:
        with suppress(*READ_ERRORS):
            yield _members.decode(item)


def _in_part(part: Fields, depth: int) -> bool:
    kind = _kind(part.get("type"))
    if kind in KINDS or (not kind and not _BARE.isdisjoint(part)):
        return True
    return any(_in_list(part[name], depth - 1) for name in _NESTED if name in part and is_list(part[name]))


def _kind(raw: Raw | None) -> str:
    try:
        return "" if raw is None else _text.decode(raw)
    except READ_ERRORS:
        return ""
