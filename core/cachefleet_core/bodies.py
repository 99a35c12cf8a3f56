"""The token ids of a JSON body: one field of its object, an array of integers."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw

_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for what it cannot read."""
_fields = msgspec.json.Decoder(dict[str, Raw])
_tokens = msgspec.json.Decoder(list[Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]])


class BodyError(ValueError):
    """A body without token ids where they were expected; the message says what is wrong with it."""


def token_ids(body: bytes, field: str) -> list[int]:
    """The integers of the array that is ``body``'s field; of the last where there are several. BodyError."""
    try:
        fields = _fields.decode(body)
    except _UNREADABLE as error:
        raise BodyError("body: not a JSON object") from error
    if field not in fields:
        raise BodyError("body: has no such field")
    try:
        return _tokens.decode(fields[field])
    except _UNREADABLE as error:
        raise BodyError("tokens: must be an array of integers from 0 to 4294967295") from error
