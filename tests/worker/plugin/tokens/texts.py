"""Texts that look for a difference: ordinary ones, and ones built from a tokenizer's own tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from hypothesis import strategies as st

from cachefleet_worker.plugin.tokens import exactness_check
from cachefleet_worker.plugin.tokens.encoding_plan import Plan

SPACES: Final = ("", " ", "  ", "\n", "\n\n", "\r\n", "\t", " \n", "\xa0", "\u3000", "\u2028", "\x85", "\x1c", "\u180e")
WORDS: Final = (
    "a",
    "word",
    "Hello",
    "don't",
    "I'LL",
    "x=1",
    "f(x)",
    "1234",
    "3.14",
    "//",
    "/",
    "!",
    "?!",
    "_",
    "▁",
    "'s",
)
WORLD: Final = (
    "漢字",
    "かな",
    "한국",
    "é",
    "e\u0301",
    "\u0301",
    "ß",
    "🙂",
    "👩\u200d👩",
    "🇫🇷",
    "\u200b",
    "\ufeff",
    "\x00",
    "ﬁ",
)


def adversarial(plan: Plan) -> st.SearchStrategy[str]:
    """Added tokens whole and torn, with white space and letters of the world around them."""
    contents = [token.content for token in plan.tokens if token.content][:40] or ["<none>"]
    token = st.sampled_from(contents)
    torn = st.builds(lambda text, at, head: text[:at] if head else text[at:], token, st.integers(0, 12), st.booleans())
    doubled = st.builds(lambda text: text * 2, token)
    piece = st.one_of(
        token,
        token,
        torn,
        doubled,
        st.sampled_from(SPACES),
        st.sampled_from(WORDS),
        st.sampled_from(WORLD),
        st.text(max_size=6),
    )
    return st.lists(piece, max_size=30).map("".join)


def seeded(plan: Plan, seed: int, count: int) -> Iterator[str]:
    """``count`` texts: half of them the self-test's kind, half random characters and long documents."""
    rng = random.Random(seed)
    hostile = exactness_check.texts(plan, rng)
    for number in range(count):
        match number % 10:
            case 0:
                yield "".join(chr(_code(rng)) for _ in range(rng.randint(0, 200)))
            case 1:
                yield _document(rng)
            case _:
                yield next(hostile)


def _code(rng: random.Random) -> int:
    code = rng.choice((rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)))
    return 0x20 if 0xD800 <= code < 0xE000 else code


def _document(rng: random.Random) -> str:
    """Longer than a chunk, with hardly any white space now and then."""
    spaces = rng.choice((SPACES, (" ",), ("\n", " "), ("", "", "\n")))
    return "".join(rng.choice(WORDS + WORLD[:8]) + rng.choice(spaces) for _ in range(rng.randint(200, 1500)))
