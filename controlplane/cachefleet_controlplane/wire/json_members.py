"""Reads and edits the members of a JSON object, each as the bytes it was sent as. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_faults import unreadable

Fields = dict[str, Raw]

TRUE: Final = Raw(b"true")
FALSE: Final = Raw(b"false")
ZERO: Final = Raw(b"0")
NULL: Final = Raw(b"null")

READ_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for input it cannot read; text that is not UTF-8 is not a DecodeError."""

_LAX_TRUE: Final = re.compile(rb'true|1(\.0+)?|"(1|true|t|y|yes|on)"', re.IGNORECASE)
_LIST_OF_PROMPTS: Final = re.compile(rb'\[\s*["\[]')

_fields = msgspec.json.Decoder(Fields)
_raws = msgspec.json.Decoder(list[Raw])
_text = msgspec.json.Decoder(str)
encode = msgspec.json.Encoder().encode


def parse_fields(body: bytes) -> Fields:
    """The members of a JSON object. ApiError 400."""
    try:
        return _fields.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError(400, "The body must be a JSON object.") from error
    except READ_ERRORS as error:
        raise unreadable(body, error) from error


def members(raw: Raw) -> Fields | None:
    """The members of a value; None where it is no object. ApiError 400: what cannot be read cannot be sanitised."""
    try:
        return _fields.decode(raw)
    except msgspec.ValidationError:
        return None
    except READ_ERRORS as error:
        raise unreadable(bytes(raw), error) from error


def is_null(fields: Mapping[str, Raw], name: str) -> bool:
    """Whether a member is absent or null."""
    return name not in fields or bytes(fields[name]) == b"null"


def lax_bool(raw: Raw | None) -> bool:
    """Whether the engine reads a value as true; values that it refuses count as false, and it refuses them itself."""
    if raw is None:
        return False
    value = bytes(raw)
    return value == b"true" or (value not in {b"false", b"null"} and _LAX_TRUE.fullmatch(value) is not None)


def text(fields: Mapping[str, Raw], name: str) -> str:
    """A text member; "" where it is absent or null. ApiError 400."""
    if name not in fields or is_null(fields, name):
        return ""
    try:
        return _text.decode(fields[name])
    except READ_ERRORS as error:
        raise ApiError(400, f"`{name}` must be text.", param=name) from error


def is_list(raw: Raw) -> bool:
    """Whether a value is a list, judged by its first byte."""
    return bytes(memoryview(raw)[:1]) == b"["


def first_of(raw: Raw) -> Raw | None:
    """The first of a list of prompts; None for a single prompt, as text or ids."""
    items = _listed(raw)
    return items[0] if items else None


def _listed(raw: Raw) -> list[Raw]:
    if _LIST_OF_PROMPTS.match(memoryview(raw)) is None:  # a long list of ids need not be decoded
        return []
    try:
        return _raws.decode(raw)
    except READ_ERRORS:
        return []


def edited(body: bytes, changes: Mapping[str, Raw | None]) -> tuple[bytes, int]:
    """A body with ``changes`` made, members of None removed, and its number of members. The body must be valid JSON."""
    fields = _fields.decode(body)
    for name, value in changes.items():
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = value
    return encode(fields), len(fields)
