"""Added tokens of a tokenizer, and at which of them a text can be cut so that the parts are encoded alone: pure.

The tokenizers library searches added tokens with ``normalized=False`` ("raw" here) in the unchanged text, leftmost and
longest first; normaliser, pre-tokenizer and model then see each part between them by itself. So a text may be cut at a
raw token, provided that nothing could make the library find another token in its place. A token refused here only
costs speed: any subset of the cuts gives the same ids.
"""

from __future__ import annotations

import bisect
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

MAX_CUT_CHARACTERS: Final = 64
"""Longer tokens are no cuts; the splitter's expression nests as deep as its longest token."""
_PUNCTUATION: Final = frozenset(string.punctuation) - {"_"}


class Side(StrEnum):
    """On which sides a cut token is separated from the text."""

    BOTH = "both"
    BEFORE = "before"
    """It takes the white space after it (rstrip), so it stays with the text that follows."""
    AFTER = "after"
    """It takes the white space before it (lstrip), so it stays with the text before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """One entry of ``added_tokens`` in a tokenizer's description."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

    @property
    def strips(self) -> bool:
        """Whether it takes white space around it."""
        return self.lstrip or self.rstrip


@dataclass(frozen=True, slots=True)
class Cut:
    """A token at which a text is cut."""

    id: int
    content: str
    side: Side


def added_tokens(description: Mapping[str, Any]) -> tuple[AddedToken, ...]:
    """The added tokens of a tokenizer's description. KeyError or TypeError where it is not one."""
    return tuple(
        AddedToken(
            id=entry["id"],
            content=entry["content"],
            single_word=entry["single_word"],
            lstrip=entry["lstrip"],
            rstrip=entry["rstrip"],
            normalized=entry["normalized"],
            special=entry["special"],
        )
        for entry in description["added_tokens"]
    )


def cuts(tokens: Sequence[AddedToken]) -> tuple[Cut, ...]:
    """The tokens at which a text may be cut; every raw token counts as an obstacle, special or not."""
    raw = [token for token in tokens if not token.normalized and token.content]
    allowed = _Neighbours(raw)
    return tuple(
        Cut(token.id, token.content, _side(token))
        for token in raw
        if _eligible(token) and allowed.found_wherever_written(token.content) and allowed.edges_fit(token.content)
    )


def _eligible(token: AddedToken) -> bool:
    return not (
        token.single_word
        or (token.lstrip and token.rstrip)
        or token.content.isspace()
        or len(token.content) > MAX_CUT_CHARACTERS
    )


def _side(token: AddedToken) -> Side:
    if token.rstrip:
        return Side.BEFORE
    return Side.AFTER if token.lstrip else Side.BOTH


class _Neighbours:
    """How the other raw tokens may interfere with one of them."""

    def __init__(self, raw: Sequence[AddedToken]) -> None:
        contents = {token.content for token in raw}
        self._sorted = sorted(contents)
        # A content with the separator in it is never a cut (see below).
        self._behind_heads = "\0".join(content[1:] for content in contents)
        self._tails = {content[start:] for content in contents for start in range(1, len(content))}
        self._single_word = any(token.single_word for token in raw)
        self._strips = any(token.strips for token in raw)

    def found_wherever_written(self, content: str) -> bool:
        """Whether the library finds this token wherever its text stands, whatever surrounds it."""
        if "\0" in content or self._extended(content):
            return False
        if content in self._behind_heads:
            return False  # another token could begin before it and contain it
        return not any(content[:end] in self._tails for end in range(1, len(content)))

    def _extended(self, content: str) -> bool:
        following = bisect.bisect_right(self._sorted, content)
        return following < len(self._sorted) and self._sorted[following].startswith(content)

    def edges_fit(self, content: str) -> bool:
        """Whether a neighbour sees at a cut what it would see of the token: no word character, no white space."""
        edges = (content[0], content[-1])
        if self._single_word and not all(edge in _PUNCTUATION for edge in edges):
            return False
        return not (self._strips and any(edge.isspace() for edge in edges))
