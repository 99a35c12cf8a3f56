"""Splits a text at its cut tokens, in one pass: pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cachefleet_worker.plugin.tokens.added_tokens import Cut, Side

_END: Final = ""
_Trie = dict[str, "_Trie"]


@dataclass(frozen=True, slots=True)
class Part:
    """Text between two cuts. ``first`` marks the one that the text begins with."""

    text: str
    first: bool


class Splitter:
    """Splits texts at the cut tokens of one tokenizer."""

    def __init__(self, cuts: Sequence[Cut]) -> None:
        self._cuts: Mapping[str, Cut] = {cut.content: cut for cut in cuts}
        self._pattern = re.compile(f"({expression(sorted(self._cuts))})") if cuts else None

    def parts(self, text: str) -> Iterator[Part | int]:
        """The parts of ``text`` in order, none empty; a token cut off on both sides as its id."""
        if self._pattern is None:
            yield Part(text, first=True)
            return
        pieces = self._pattern.split(text)
        pending, first = pieces[0], True
        for token, following in zip(pieces[1::2], pieces[2::2], strict=True):
            cut = self._cuts[token]
            if cut.side is Side.AFTER:
                pending += token
            if pending:
                yield Part(pending, first)
            if cut.side is Side.BOTH:
                yield cut.id
            pending, first = (token + following if cut.side is Side.BEFORE else following), False
        if pending:
            yield Part(pending, first)


def expression(words: Sequence[str]) -> str:
    """A regular expression that matches exactly these words, with shared beginnings factored out."""
    root: _Trie = {}
    for word in words:
        node = root
        for character in word:
            node = node.setdefault(character, {})
        node[_END] = {}
    return _alternatives(root)


def _alternatives(node: _Trie) -> str:
    if set(node) == {_END}:
        return ""
    longer = [re.escape(character) + _alternatives(below) for character, below in node.items() if character != _END]
    if _END in node:
        return f"(?:{'|'.join(longer)})?"
    return longer[0] if len(longer) == 1 else f"(?:{'|'.join(longer)})"
