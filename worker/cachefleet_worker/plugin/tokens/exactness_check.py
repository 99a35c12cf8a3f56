"""Compares part-wise with whole encoding, on adversarial texts built from a tokenizer's own tokens."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from cachefleet_worker.plugin.tokens.encoding_plan import PlainOnly, Plan, Reason
from cachefleet_worker.plugin.tokens.segments import PartEncoder, PartError, no_panic
from cachefleet_worker.plugin.tokens.token_cache import TokenCache

TEXTS: Final = 400
LEAST_TEXTS: Final = 100
"""Checked whatever the time; beyond them the time bound ends the test."""
SECONDS: Final = 2.0
SEED: Final = 20_240_229
_CACHE_BYTES: Final = 4 * 1024 * 1024
_CHUNK_CHARACTERS: Final = 24
"""So short that nearly every allowed cut is made."""
_MOST_TOKENS: Final = 64
_ORDINARY: Final = 0.6
"""Share of pieces that are no added tokens."""
_SPACES: Final = ("", " ", "  ", "\n", "\t", "\u00a0", "\u3000", "\x1c", "_", "x", ".")

_PIECES: Final = (
    *(
        "a",
        "I",
        "the",
        "Hello",
        " world",
        "don't",
        "'s",
        "x86",
        "3.14",
        "1234567",
        "naïve",
        "e\u0301",
        "\u0301",
        "ß",
        "ﬁ",
    ),
    *(
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        " \n",
        "\n ",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\x1c",
        "\x85",
        "\u200b",
    ),
    *("!", "?!", "...", "()", '{"k": [1, 2]}', "<", ">", "|", "<|", "|>", "</", "_", "__", "▁", "▁▁", "/", "//", "\\"),
    *(
        "漢字",
        "こんにちは",
        "한국어",
        "مرحبا",
        "हिन्दी",
        "ไทย",
        "🙂",
        "👩‍👩‍👧",
        "🇫🇷",
        "\U0001f9d1\u200d🚀",
        "\ufeff",
        "\ufffd",
        "\x00",
        "\u0e33",
    ),
    *("```python\n", "def f(x):\n    return x + 1\n", "https://example.org/a?b=c&d", "- item\n", "# Title\n\n"),
)


def texts(plan: Plan, rng: random.Random) -> Iterator[str]:
    """Endless: ordinary pieces and the tokenizer's added tokens, whole, cut, doubled, with white space around."""
    tokens = [token.content for token in plan.tokens if token.content]
    chosen = rng.sample(tokens, min(len(tokens), _MOST_TOKENS))
    chosen += [cut.content for cut in plan.cuts[:_MOST_TOKENS]]
    while True:
        yield "".join(_piece(chosen, rng) for _ in range(rng.randint(1, 40)))


def _piece(tokens: Sequence[str], rng: random.Random) -> str:
    if not tokens or rng.random() < _ORDINARY:
        return rng.choice(_PIECES)
    token, other = rng.choice(tokens), rng.choice(tokens)
    torn = rng.randrange(len(token))
    spaced = f"{rng.choice(_SPACES)}{token}{rng.choice(_SPACES)}"
    kinds = (
        token,
        token,
        spaced,
        spaced,
        token[:torn],
        token[torn:],
        token[:torn] + other,
        token * 2,
        token.swapcase(),
    )
    return rng.choice(kinds)


def check(tokenizer: Any, plan: Plan, *, rng: random.Random, seconds: float = SECONDS) -> PlainOnly | None:
    """Encode texts in parts and as a whole, with an empty cache and again; the refusal where one differs."""
    cache = TokenCache(_CACHE_BYTES)
    encoders = (PartEncoder(tokenizer, plan, cache, owner=0), _choppy(tokenizer, plan, cache))
    deadline = time.monotonic() + seconds
    for number, text in zip(range(TEXTS), texts(plan, rng), strict=False):
        if number >= LEAST_TEXTS and time.monotonic() > deadline:
            break
        if not _same(tokenizer, encoders, text):
            return PlainOnly(Reason.SELF_TEST, f"text {number}")
    return None


def _same(tokenizer: Any, encoders: Sequence[PartEncoder], text: str) -> bool:
    """Whether the encoders agree with the tokenizer on one text; False where one of them cannot encode it."""
    try:
        for add_special_tokens in (False, True):
            with no_panic():
                whole = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
            if differs(encoders, text, whole, add_special_tokens=add_special_tokens):
                return False
    except PartError:
        return False
    return True


def differs(encoders: Sequence[PartEncoder], text: str, whole: list[int], *, add_special_tokens: bool) -> bool:
    """Whether an encoder that returns ids returns others than ``whole``, at first or from the cache."""
    return any(
        encoder.encode(text, "", add_special_tokens=add_special_tokens) not in (None, whole)
        for encoder in encoders
        for _ in range(2)
    )


def _choppy(tokenizer: Any, plan: Plan, cache: TokenCache) -> PartEncoder:
    return PartEncoder(tokenizer, plan, cache, owner=1, chunk_characters=_CHUNK_CHARACTERS)
