"""The images and the like of a rendered prompt, as its blocks are keyed by them: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cachefleet_core.block_identity.media import Placed


def placed_media(hashes: Any, placeholders: Any, *, prefix: str = "") -> tuple[Placed, ...] | None:
    """The media that vLLM names by ``hashes`` and places by ``placeholders``, both by kind; sorted by offset.

    None where they are not as known here. ``prefix`` stands before each identifier.
    """
    try:
        found = list(_placed(hashes or {}, placeholders or {}, prefix))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return tuple(sorted(found, key=lambda one: one.offset))


def _placed(
    hashes: Mapping[str, Sequence[str]], placeholders: Mapping[str, Sequence[Any]], prefix: str
) -> Iterator[Placed]:
    for kind, ranges in placeholders.items():
        for identifier, each in zip(hashes[kind], ranges, strict=True):
            if not isinstance(identifier, str):
                raise TypeError("an identifier must be text")
            yield Placed(prefix + identifier, int(each.offset), int(each.length))


def before_media(placeholders: Any, *, length: int) -> int:
    """The number of leading tokens that stand for text alone, of ``length``; 0 where that cannot be told."""
    try:
        return min((int(each.offset) for ranges in (placeholders or {}).values() for each in ranges), default=length)
    except (AttributeError, TypeError, ValueError):
        return 0
