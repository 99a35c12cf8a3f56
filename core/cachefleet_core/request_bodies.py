"""Reads token ids from a JSON body: an array of integers in one field of its object."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw

_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for input that it cannot decode."""
_fields = msgspec.json.Decoder(dict[str, Raw])
_tokens = msgspec.json.Decoder(list[Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]])


class BodyError(ValueError):
    """A body without valid token ids in the expected field; the message says what is wrong with it."""


def token_ids(body: bytes, field: str) -> list[int]:
    """Token ids of the array ``field``, the last where it occurs several times. BodyError where there is none."""
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
