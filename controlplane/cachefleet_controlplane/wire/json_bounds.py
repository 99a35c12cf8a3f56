"""Bounds on the parts of a JSON body, checked before it is decoded: a small body of many parts costs seconds.

Counted are objects and lists, strings (names of members among them), commas and depth, by a scan that knows no more of
JSON than where strings end. ``JsonBounds.first_excess`` is the twin of the native ``json_excess``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_faults import check_text, is_text

NO_TEXT: Final = "text"
"""Stands for a bound where a body has no fault but that it is no text."""
NativeExcess = Callable[[bytes, int, int, int, int], str | None]

_PART: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]|[^"\[\]{}]++', re.DOTALL)
_QUOTE, _OPENERS, _CLOSERS = ord('"'), b"[{", b"]}"
_WORDS: Final = {
    "containers": "more than {} objects and lists",
    "strings": "more than {} strings and names",
    "items": "more than {} items",
    "depth": "objects and lists nested more than {} deep",
}


@dataclass(frozen=True, slots=True)
class JsonBounds:
    """The most that a body may have; in ``items`` each comma counts, so that a prompt of 2 million ids has room."""

    containers: int = 65_536
    strings: int = 262_144
    items: int = 2_097_152
    depth: int = 128

    def check(self, body: bytes, native: NativeExcess | None = None) -> None:
        """ApiError 400 for a body that crosses a bound, or is no text (see ``json_faults``)."""
        crossed = (
            self.first_excess(body)
            if native is None
            else native(body, self.containers, self.strings, self.items, self.depth)
        )
        if crossed == NO_TEXT:
            check_text(body)
        elif crossed is not None:
            raise ApiError(400, f"The body has {_WORDS[crossed].format(getattr(self, crossed))}.")

    def first_excess(self, body: bytes) -> str | None:
        """The name of the bound that is crossed first, in reading order; NO_TEXT within all; None where all is well."""
        crossed = None if self._surely_within(body) else self._scan(body)
        return crossed or (None if is_text(body) else NO_TEXT)

    def _surely_within(self, body: bytes) -> bool:
        """Whether there are few enough, however many of the characters are within strings."""
        opened = body.count(b"{") + body.count(b"[")
        return (
            opened <= min(self.containers, self.depth)
            and body.count(b'"') <= self.strings
            and body.count(b",") <= self.items
        )

    def _scan(self, body: bytes) -> str | None:
        containers = strings = items = depth = 0
        for part in _PART.finditer(body):
            first = body[part.start()]
            if first == _QUOTE:
                strings += 1
            elif first in _OPENERS:
                containers += 1
                depth += 1
            elif first in _CLOSERS:
                if not depth:
                    return None  # no JSON goes on like this; its decoder will say so
                depth -= 1
            else:
                items += body.count(b",", part.start(), part.end())
            if (crossed := self._crossed(containers, strings, items, depth)) is not None:
                return crossed
        return None

    def _crossed(self, containers: int, strings: int, items: int, depth: int) -> str | None:
        if containers > self.containers:
            return "containers"
        if depth > self.depth:
            return "depth"
        if strings > self.strings:
            return "strings"
        return "items" if items > self.items else None
