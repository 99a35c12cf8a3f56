"""``Prefer: if-available`` (RFC 7240): a client that rather hears 412 than has a cold prompt computed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefleet_controlplane.wire.headers import Header

APPLIED: Final[Header] = (b"preference-applied", b"if-available")
_PREFER: Final = b"prefer"
_IF_AVAILABLE: Final = b"if-available"


def wants_cached(headers: Iterable[Header]) -> bool:
    """Whether a request prefers that; other preferences beside it, and parameters of it, change nothing."""
    given = (part for name, value in headers if name == _PREFER for part in value.split(b","))
    return any(part.partition(b";")[0].strip().lower() == _IF_AVAILABLE for part in given)
