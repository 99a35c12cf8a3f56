"""Where a long part of a text without added tokens may be cut further, with exactly the ids of the whole: pure.

A space after a printable ASCII character is such a place if the pre-tokenizer always separates the two and no pattern
looks across. That is known for the expressions listed here and no others. A line break before a word is one too for
some of them (GPT-2's takes the last of several line breaks by itself, o200k's takes a slash after one).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_worker.plugin.tokens.added_tokens import AddedToken

CHUNK_CHARACTERS: Final = 2048
"""A part longer than this is cut at the first place that is allowed past it."""

_MARK: Final = "▁"
_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL: Final = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD: Final = r"[^\r\n\p{L}\p{N}]?"
_DIGITS: Final = r"\p{N}{1,3}"
_SIGNS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_SIGNS_SLASH: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"

_LINE_SAFE: Final = frozenset(
    {
        # Llama-3 and cl100k, Qwen2 and Qwen3, Qwen3.5
        rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|{_DIGITS}{_SIGNS}{_TAIL}",
        rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{_SIGNS}{_TAIL}",
        rf"{_CONTRACTIONS}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_TAIL}",
        # DeepSeek-V3
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*" + _TAIL,
    }
)
_SPACE_SAFE: Final = _LINE_SAFE | {
    # GPT-2
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    # o200k
    f"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|{_DIGITS}{_SIGNS_SLASH}{_TAIL}",
    # Tekken
    rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}{_SIGNS_SLASH}{_TAIL}",
}
_INDIFFERENT: Final = frozenset({_DIGITS, r"\p{N}", "[一-龥぀-ゟ゠-ヿ]+"})  # noqa: RUF001 - as written in DeepSeek-V3's tokenizer
"""Expressions that never take a space or a line break."""

_SPACE: Final = r"(?<=[!-~])(?= )"
_LINE: Final = r"(?<=\n)(?=[\w!-~])"


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """Where to cut: before a space after printable ASCII; with ``lines`` also before the word that begins a line."""

    lines: bool

    @property
    def expression(self) -> str:
        """A regular expression that matches, with no width, the places to cut at."""
        return f"{_SPACE}|{_LINE}" if self.lines else _SPACE


@dataclass(frozen=True, slots=True)
class Chunker:
    """Cuts long parts. The first chunks of a growing text stay the same."""

    place: re.Pattern[str]
    characters: int

    @classmethod
    def of(cls, rule: ChunkRule, characters: int = CHUNK_CHARACTERS) -> Chunker:
        """The chunker for a rule; chunks have at least about ``characters``."""
        return cls(re.compile(rule.expression), characters)

    def chunks(self, text: str) -> Iterator[str]:
        """``text`` in pieces of about ``characters``; longer where no cut is allowed."""
        start = 0
        while len(text) - start > self.characters and (found := self.place.search(text, start + self.characters)):
            yield text[start : found.start()]
            start = found.start()
        yield text[start:]


def chunk_rule(
    pre_tokenizers: Sequence[Mapping[str, Any]],
    normalizers: Sequence[Mapping[str, Any]],
    model: Mapping[str, Any],
    tokens: Sequence[AddedToken],
) -> ChunkRule | None:
    """The rule for a tokenizer's components; None where no place is known to be safe."""
    if not all(_harmless(part) for part in normalizers) or not all(map(_leaves_spaces, tokens)):
        return None
    marked = any(part["type"] == "Replace" for part in normalizers)
    for part in pre_tokenizers:
        if _parts_spaces(part, marked=marked):
            # A chunk that begins with a word would be encoded as a text's start; one with a space is alike in both.
            starts_alike = not any(other["type"] == "Metaspace" for other in pre_tokenizers)
            return ChunkRule(_parts_lines(part) and starts_alike and all(map(_leaves_lines, tokens)))
        if _marks_spaces(part):
            marked = True
        elif not _indifferent(part, marked=marked):
            return None
    return ChunkRule(lines=False) if marked and _keeps_marks_in_front(model) else None


def _harmless(normalizer: Mapping[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        return bool(normalizer["pattern"] == {"String": " "} and normalizer["content"] == _MARK)
    return bool(normalizer["type"] == "NFC")


def _leaves_spaces(token: AddedToken) -> bool:
    """Whether a token neither spans such a place, nor takes the space after it, nor looks across it."""
    looks_across = token.single_word and token.content != token.content.strip()
    return not token.rstrip and not looks_across and not re.search(r"\S\s", token.content)


def _leaves_lines(token: AddedToken) -> bool:
    """Whether a token neither spans a line break before a word nor takes the white space around it."""
    return not token.strips and not re.search(r"\n\S", token.content)


def _parts_spaces(part: Mapping[str, Any], *, marked: bool) -> bool:
    """Whether this pre-tokenizer always separates a space from a printable character before it."""
    match part["type"]:
        case "Metaspace":
            return bool(part["split"] and part["replacement"] == _MARK)
        case "ByteLevel":
            return bool(part["use_regex"]) and not marked
        case "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer":
            return not marked
        case "Split":
            return not marked and _isolates(part) and _expression(part) in _SPACE_SAFE
    return False


def _marks_spaces(part: Mapping[str, Any]) -> bool:
    return bool(part["type"] == "Metaspace" and not part["split"] and part["replacement"] == _MARK)


def _parts_lines(part: Mapping[str, Any]) -> bool:
    return bool(part["type"] == "Split" and _expression(part) in _LINE_SAFE)


def _indifferent(part: Mapping[str, Any], *, marked: bool) -> bool:
    """Whether this pre-tokenizer splits both sides of such a place as it splits the whole."""
    match part["type"]:
        case "Digits":
            return True
        case "Punctuation":
            return part["behavior"] in {"Isolated", "Contiguous", "Removed"}
        case "Split" if part["pattern"] == {"String": " "}:
            return marked  # no space is left to split at
        case "Split":
            return _isolates(part) and _expression(part) in _INDIFFERENT
    return False


def _isolates(part: Mapping[str, Any]) -> bool:
    return (part["behavior"], part["invert"]) in {("Isolated", False), ("Removed", True)}


def _expression(part: Mapping[str, Any]) -> str | None:
    written = part["pattern"].get("Regex")
    return None if written is None else written.replace("\r", r"\r").replace("\n", r"\n")


def _keeps_marks_in_front(model: Mapping[str, Any]) -> bool:
    """Whether no merge can reach across the start of a word in text that is not split before the model."""
    if model["type"] != "BPE" or model["ignore_merges"] or _MARK not in model["vocab"]:
        return False
    return not any(re.search(f"[^{_MARK}]{_MARK}", piece) for piece in model["vocab"])
