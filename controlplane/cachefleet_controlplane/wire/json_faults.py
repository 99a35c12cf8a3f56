"""What is wrong with a body that is no JSON, or whose text is none, and where. Pure.

JSON's escapes can write half of a surrogate pair, as programs do that cut a text within an emoji: a decoder may take
that, an encoder does not, so an engine fails on it later and says less.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from cachefleet_controlplane.wire.errors import ApiError

MAX_NAME: Final = 64
"""Characters of a member's name that an error repeats."""
_HIGH: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_UNITS: Final = re.compile(_HIGH + b"(?P<pair>" + _LOW + b")?|" + _LOW)
_BACKSLASH: Final = ord("\\")


def check_text(body: bytes) -> None:
    """Say what is wrong with a body that is no text, and where. ApiError 400."""
    _check_utf8(body)
    if (found := _lone_surrogate(body)) is None:
        return
    at, unit = found
    place, member = _place(body)
    message = (
        f"{place} has {unit}, half of a surrogate pair, at byte {at}: it is no character, and no text can be encoded "
        "with it. Send the whole character, or leave it out."
    )
    raise ApiError(400, message, param=member)


def unreadable(body: bytes, error: Exception) -> ApiError:
    """Return the ApiError 400 for a body that a decoder could not read, which said ``error``."""
    if not body.strip():
        return ApiError(400, "The body is empty: it must be a JSON object.")
    try:
        text = body.decode()
        json.loads(text, parse_constant=_no_number)
    except ApiError as found:
        return found
    except json.JSONDecodeError as found:
        at = len(text[: found.pos].encode())
        cut = at >= len(body.rstrip()) or found.msg.startswith("Unterminated")
        words = found.msg.removesuffix(" at").removesuffix(" starting")
        tail = "; the body ends within it: it was cut, or not written to its end" if cut else ""
        return ApiError(400, f"The body is not valid JSON: {words} at byte {at} of {len(body)}{tail}.")
    except (ValueError, RecursionError):  # the decoder's own words have to do
        pass
    return ApiError(400, f"The body is not valid JSON: {error}")


def _no_number(name: str) -> None:
    """ApiError 400 for NaN and infinities, which Python's decoder takes and JSON has not."""
    raise ApiError(400, f"The body is not valid JSON: {name} is no number there. Leave the member out, or send null.")


def _check_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        message = f"The body is not UTF-8: {error.reason} at byte {error.start} (0x{body[error.start]:02x})."
        raise ApiError(400, message) from error


def _lone_surrogate(body: bytes) -> tuple[int, str] | None:
    """The place of the first half of a pair, and how it is written."""
    for unit in _UNITS.finditer(body):
        if unit["pair"] is None and not _is_escaped(body, unit.start()):
            return unit.start(), unit.group().decode()
        if unit["pair"] is not None and _is_escaped(body, unit.start()):
            # Its first backslash is text, so the second unit stands alone.
            return unit.start("pair"), unit["pair"].decode()
    return None


def _is_escaped(body: bytes, at: int) -> bool:
    """Whether the backslash at an index is what another one escapes."""
    before = at
    while before and body[before - 1] == _BACKSLASH:
        before -= 1
    return (at - before) % 2 == 1


def _place(body: bytes) -> tuple[str, str | None]:
    """The member that holds the first lone surrogate, as a path, and the top-level one."""
    try:
        path = _path(json.loads(body.decode()))
    except (ValueError, RecursionError):  # it is no JSON besides
        path = None
    if not path:
        return "The body", None
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:MAX_NAME]}" for part in path)
    return f"`{shown.removeprefix('.')}`", str(path[0])[:MAX_NAME]


def _path(value: Any) -> list[str | int] | None:
    """Names and indices on the way to the first text that has a lone surrogate, where the names have none."""
    if isinstance(value, str):
        return None if _encodes(value) else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, member in inner:
        if isinstance(part, str) and not _encodes(part):
            return None
        if (rest := _path(member)) is not None:
            return [part, *rest]
    return None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
