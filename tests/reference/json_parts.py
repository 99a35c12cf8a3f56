"""What is counted of a JSON body, and whether it is text, in the plainest code."""

from __future__ import annotations

import re
from typing import Final

from cachefleet_controlplane.wire.json_bounds import JsonBounds

_PART: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]|[^"\[\]{}]++', re.DOTALL)
_SURROGATE_HIGH: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_SURROGATE_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE: Final = re.compile(
    _SURROGATE_HIGH + b"(?!" + _SURROGATE_LOW + b")|(?<!" + _SURROGATE_HIGH + b")" + _SURROGATE_LOW
)


def first_excess(body: bytes, bounds: JsonBounds) -> str | None:
    """The name of the bound that is crossed first, in reading order; "text" within all where the body is no text."""
    return _crossed(body, bounds) or (None if is_text(body) else "text")


def is_text(body: bytes) -> bool:
    """Whether a body is UTF-8, and no escape in it is half of a surrogate pair alone."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return _LONE.search(body.replace(rb"\\", b"  ")) is None  # what an escaped backslash is followed by is no escape


def _crossed(body: bytes, bounds: JsonBounds) -> str | None:
    counts = {"containers": 0, "depth": 0, "strings": 0, "items": 0}
    for part in _PART.findall(body):
        match part[:1]:
            case b'"':
                counts["strings"] += 1
            case b"{" | b"[":
                counts["containers"] += 1
                counts["depth"] += 1
            case b"}" | b"]":
                if not counts["depth"]:
                    return None  # no JSON goes on like this; its decoder will say so
                counts["depth"] -= 1
            case _:
                counts["items"] += part.count(b",")
        for name, count in counts.items():
            if count > getattr(bounds, name):
                return name
    return None
