"""A client's own names of media (``uuid`` of a part), made its tenant's. Pure.

vLLM takes such a name for the content: whoever gives it gets what was sent under it, by anybody, whatever the salt. So
each tenant's names are replaced by keyed digests of them; of one tenant equal names stay equal.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, encode, is_list, is_null

_NAME: Final = "uuid"
_HINTS: Final = (b"uuid", b"\\u00")
"""Without one of these no member is so named, also not in escapes."""
_NESTED: Final = ("content", "output")
_MAX_DEPTH: Final = 4
_items = msgspec.json.Decoder(list[Raw])
_members = msgspec.json.Decoder(Fields)
_text = msgspec.json.Decoder(str)


def with_own_names(messages: Raw, *, salt: str) -> Raw:
    """A list of messages or input items; every other byte stays. What cannot be read is left to the engine."""
    if not is_list(messages) or not any(hint in bytes(messages) for hint in _HINTS):
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
        name = bytes(raw)  # no text: the engine will refuse it, or take it for one
    return Raw(encode(hmac.new(salt, b"media\0" + name, hashlib.sha256).hexdigest()))
