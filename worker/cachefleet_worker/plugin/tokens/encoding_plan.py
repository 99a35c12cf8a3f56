"""Whether, and how, a tokenizer's texts can be encoded in parts with exactly the ids of the whole: pure.

Decided from the tokenizer's own description (``Tokenizer.to_str()``), never from a model's name. Where it is refused
the plain encoder is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cachefleet_worker.plugin.tokens.added_tokens import AddedToken, Cut, Side, added_tokens, cuts
from cachefleet_worker.plugin.tokens.chunks import ChunkRule, chunk_rule

_PRE_TOKENIZERS: Final = frozenset(
    {
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "FixedLength",
        "Metaspace",
        "Punctuation",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    }
)
_NORMALIZERS: Final = frozenset(
    {
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Prepend",
        "Replace",
        "Strip",
        "StripAccents",
    }
)
_MODELS: Final = frozenset({"BPE", "Unigram", "WordPiece", "WordLevel"})
_RANDOM: Final = ("dropout", "alpha", "nbest_size", "nbest")
"""Fields of a model that make its ids random where they are set."""


class Reason(StrEnum):
    """Why a tokenizer's texts are not encoded in parts."""

    NOT_FAST = "it is not a plain tokenizer of the tokenizers library"
    OVERRIDDEN = "its class has its own way to encode"
    SPLITS_SPECIALS = "it takes special tokens apart"
    MALFORMED = "its description cannot be read"
    UNKNOWN_COMPONENT = "it has a component that is not known here"
    RANDOM = "its ids are a matter of chance"
    NO_CUTS = "no added token can be cut at"
    NO_ANCHOR = "its first part differs and no token can stand before the others"
    SELF_TEST = "its self-test failed"
    MISMATCH = "a sample differed from the plain encoder"


@dataclass(frozen=True, slots=True)
class PlainOnly:
    """Why a tokenizer is left to the plain encoder."""

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to encode a text in parts."""

    cuts: tuple[Cut, ...]
    anchor: Cut | None
    """Put before every part but the text's first, and its id removed again; None where that is not needed."""
    chunks: ChunkRule | None
    """Where a long part may be cut further; None where it may not."""
    tokens: tuple[AddedToken, ...]


def make_plan(description: Mapping[str, Any]) -> Plan | PlainOnly:
    """The plan for a tokenizer, from its description."""
    try:
        return _refusal(description) or _plan(description)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return PlainOnly(Reason.MALFORMED, f"{type(error).__name__}: {error}")


def flat(component: Mapping[str, Any] | None, inside: str) -> Iterator[Mapping[str, Any]]:
    """The components of a description in the order they run; ``inside`` names the list in a Sequence."""
    if component is None:
        return
    if component["type"] == "Sequence":
        for part in component[inside]:
            yield from flat(part, inside)
    else:
        yield component


def _refusal(description: Mapping[str, Any]) -> PlainOnly | None:
    model = description["model"]
    for kind, known in (
        (model["type"], _MODELS),
        *((part["type"], _PRE_TOKENIZERS) for part in _pre_tokenizers(description)),
        *((part["type"], _NORMALIZERS) for part in _normalizers(description)),
    ):
        if kind not in known:
            return PlainOnly(Reason.UNKNOWN_COMPONENT, str(kind))
    for name in _RANDOM:
        if model.get(name):
            return PlainOnly(Reason.RANDOM, f"{name} is {model[name]}")
    return None


def _plan(description: Mapping[str, Any]) -> Plan | PlainOnly:
    tokens = added_tokens(description)
    found = cuts(tokens)
    chunks = chunk_rule(
        tuple(_pre_tokenizers(description)), tuple(_normalizers(description)), description["model"], tokens
    )
    if not found and chunks is None:
        return PlainOnly(Reason.NO_CUTS)
    anchor = None
    if found and _first_differs(description):
        anchor = next((cut for cut in found if cut.side is Side.BOTH), None)
        if anchor is None:
            return PlainOnly(Reason.NO_ANCHOR)
    return Plan(cuts=found, anchor=anchor, chunks=chunks, tokens=tokens)


def _first_differs(description: Mapping[str, Any]) -> bool:
    """Whether the part at the start of a text is encoded otherwise than the same part further on."""
    return any(
        part["type"] == "Metaspace" and part["prepend_scheme"] == "first" for part in _pre_tokenizers(description)
    )


def _pre_tokenizers(description: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return flat(description["pre_tokenizer"], "pretokenizers")


def _normalizers(description: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return flat(description["normalizer"], "normalizers")
