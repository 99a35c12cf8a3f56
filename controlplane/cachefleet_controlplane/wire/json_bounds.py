"""Bounds on the parts of a JSON body, checked before it is decoded: a small body of many parts costs seconds.

Counted are objects and lists, strings (names of members among them), commas and depth, in native code, by a scan that
knows no more of JSON than where strings end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_native import json_excess

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_faults import check_text

NO_TEXT: Final = "text"
"""Stands for a bound where a body has no fault but that it is no text."""
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

    def check(self, body: bytes) -> None:
        """ApiError 400 for a body that crosses a bound, or is no text (see ``json_faults``)."""
        crossed = self.first_excess(body)
        if crossed == NO_TEXT:
            check_text(body)
        elif crossed is not None:
            raise ApiError(400, f"The body has {_WORDS[crossed].format(getattr(self, crossed))}.")

    def first_excess(self, body: bytes) -> str | None:
        """The name of the bound that is crossed first, in reading order; NO_TEXT within all; None where all is well."""
        return json_excess(body, self.containers, self.strings, self.items, self.depth)
