"""A byte-level BPE tokenizer, trained here: pure Python, so that the same words give the same file everywhere.

Byte-level means that any text in any script has tokens, and that decoding gives the text back. Training merges the
most frequent pair again and again; of equal counts the pair that sorts first wins, so the result is deterministic.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

END_OF_TEXT: Final = "<|endoftext|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, TURN_START, TURN_END)
BYTES: Final = 256

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

Pair = tuple[str, str]


def byte_alphabet() -> list[str]:
    """The printable character for each of the 256 bytes, as byte-level BPE files map them."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(BYTES, 2 * BYTES))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(BYTES)]


def train(words: Sequence[str], vocabulary: int) -> tuple[dict[str, int], list[Pair]]:
    """Token ids and merges, in order, for at most ``vocabulary`` tokens, the special ones last.

    Each word is learnt within a sentence, at its start, and alone; earlier words have more weight.
    """
    alphabet = byte_alphabet()
    corpus = [(tuple(alphabet[b] for b in form.encode()), weight) for form, weight in _forms(words)]
    counts = Counter[Pair]()
    for word, weight in corpus:
        _count(counts, word, weight)
    merges: list[Pair] = []
    while counts and len(merges) < vocabulary - BYTES - len(SPECIAL_TOKENS):
        most = max(counts.values())
        pair = min(pair for pair, count in counts.items() if count == most)
        merges.append(pair)
        corpus = [(_merged(word, pair, counts, weight), weight) for word, weight in corpus]
    tokens = dict.fromkeys([*alphabet, *(a + b for a, b in merges), *SPECIAL_TOKENS])
    return {token: i for i, token in enumerate(tokens)}, merges


def tokenizer_files(words: Sequence[str], vocabulary: int, max_length: int) -> dict[str, str]:
    """``tokenizer.json`` and ``tokenizer_config.json`` as text, by file name."""
    ids, merges = train(words, vocabulary)
    return {
        "tokenizer.json": json.dumps(_tokenizer(ids, merges), ensure_ascii=False, indent=1),
        "tokenizer_config.json": json.dumps(_configuration(max_length), indent=1),
    }


def _forms(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    for rank, word in enumerate(dict.fromkeys(words)):
        weight = 4 * len(words) - rank
        yield " " + word, weight
        yield word, weight // 4
        yield " " + word.capitalize(), weight // 8
        yield word.capitalize(), weight // 16


def _count(counts: Counter[Pair], word: tuple[str, ...], weight: int) -> None:
    for pair in pairwise(word):
        counts[pair] += weight
        if not counts[pair]:
            del counts[pair]


def _merged(word: tuple[str, ...], pair: Pair, counts: Counter[Pair], weight: int) -> tuple[str, ...]:
    """``word`` with ``pair`` as one token wherever it occurs; ``counts`` follows."""
    if pair[0] not in word or pair not in pairwise(word):
        return word
    _count(counts, word, -weight)
    merged = tuple(_merge(word, pair))
    _count(counts, merged, weight)
    return merged


def _merge(word: tuple[str, ...], pair: Pair) -> Iterable[str]:
    position = 0
    while position < len(word):
        if word[position : position + 2] == pair:
            yield pair[0] + pair[1]
            position += 2
        else:
            yield word[position]
            position += 1


def _tokenizer(ids: dict[str, int], merges: list[Pair]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(token, ids[token]) for token in SPECIAL_TOKENS],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for token, i in ids.items() if token not in SPECIAL_TOKENS},
            "merges": [list(pair) for pair in merges],
        },
    }


def _special(token: str, token_id: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": token, **flags}


def _configuration(max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [TURN_START, TURN_END],
        "chat_template": CHAT_TEMPLATE,
    }
