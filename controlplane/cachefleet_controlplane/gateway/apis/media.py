"""Media in messages: whether there are any, and clients' names of them (``uuid``) made private to a tenant. Pure.

Messages are parsed, so that a tool's argument named "image" is not mistaken for one; that costs a fraction of searching
their text. What is missed here the worker's renderer finds. The engine keys a medium's blocks by its name (``uuid`` of
a part), so no tenant's name may be another's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, encode, is_list, is_null, is_object

_HINTS: Final = (b'"image', b'_image"', b'_audio"', b'_url"', b'_embeds"', b'_file"', b'"file"', b'"audio"', b'"video')
KINDS: Final = frozenset(
    {
        *("image_url", "image_embeds", "image_pil", "audio_url", "input_audio", "audio_embeds"),
        *("video_url", "video_embeds", "prompt_embeds", "input_image", "input_file", "input_video"),
        *("image", "document", "file", "audio", "video", "computer_screenshot"),
    }
)
"""Types of message parts that are not text; a part without a type is known by a member of such a name."""
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
    """Whether a body's list of messages or input items has media; False for anything but a list."""
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
    for item in filter(is_object, items):
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


_NAME: Final = "uuid"
_NAME_HINT, _ESCAPED = b"uuid", b"\\u00"
"""Without one of these no member has that name, not even escaped."""


def with_own_names(messages: Raw, *, salt: str) -> Raw:
    """Return messages or input items with names of media hashed under ``salt``; what cannot be read stays."""
    text = bytes(messages)
    if not is_list(messages) or (_NAME_HINT not in text and _ESCAPED not in text):
        return messages
    return _list(messages, salt.encode(), _MAX_DEPTH)


def _list(raw: Raw, salt: bytes, depth: int) -> Raw:
    try:
        items = _items.decode(raw)
    except READ_ERRORS:
        return raw
    own = [_item(item, salt, depth) for item in items]
    return Raw(encode(own)) if any(new is not old for new, old in zip(own, items, strict=True)) else raw


def _item(raw: Raw, salt: bytes, depth: int) -> Raw:
    try:
        fields = _members.decode(raw)
    except READ_ERRORS:
        return raw
    changes = _changes(fields, salt, depth)
    return Raw(encode(fields | changes)) if changes else raw


def _changes(fields: Fields, salt: bytes, depth: int) -> Fields:
    changes = {} if is_null(fields, _NAME) else {_NAME: _own(fields[_NAME], salt)}
    for name in _NESTED if depth else ():
        inner = fields.get(name)
        if inner is not None and is_list(inner) and (own := _list(inner, salt, depth - 1)) is not inner:
            changes[name] = own
    return changes


def _own(raw: Raw, salt: bytes) -> Raw:
    try:
        name = _text.decode(raw).encode()
    except READ_ERRORS:
        name = bytes(raw)  # not text: the engine will refuse it, or convert it
    return Raw(encode(hmac.new(salt, b"media\0" + name, hashlib.sha256).hexdigest()))
