"""Ids from parts are the ids of the whole, for every style of tokenizer, whatever the text."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from cachefleet_worker.plugin.tokens.encoding_plan import PlainOnly, Plan, Reason
from cachefleet_worker.plugin.tokens.exactness_check import check
from cachefleet_worker.plugin.tokens.segments import PartEncoder, PartError, no_panic, private_copy
from cachefleet_worker.plugin.tokens.token_cache import TokenCache
from tests.worker.plugin.tokens.styles import BIG, STYLES, trained
from tests.worker.plugin.tokens.texts import SPACES, WORDS, adversarial, seeded

CACHE_BYTES = 32 * 1024 * 1024
CHOPPY = 16
ANCHORED = {"mistral", "unigram_first"}
CHUNKED = {
    "gpt2": False,
    "llama3": True,
    "qwen": True,
    "o200k": False,
    "deepseek": True,
    "mistral": False,
    "gemma": False,
}
"""Styles whose long parts are cut, and whether also at line breaks."""


@cache
def proven(name: str, size: int | None = None) -> tuple[Any, Plan]:
    copy, plan = private_copy(trained(name, size) if size else trained(name))
    assert isinstance(plan, Plan), plan
    return copy, plan


@cache
def encoders(name: str, size: int | None = None) -> tuple[PartEncoder, ...]:
    """With chunks as in service, and cut wherever it is allowed."""
    copy, plan = proven(name, size)
    cache = TokenCache(CACHE_BYTES)
    return (PartEncoder(copy, plan, cache, owner=0), PartEncoder(copy, plan, cache, owner=1, chunk_characters=CHOPPY))


def assert_same(name: str, text: str, size: int | None = None) -> None:
    copy, _ = proven(name, size)
    for add_special_tokens in (False, True):
        whole = copy.encode(text, add_special_tokens=add_special_tokens).ids
        for encoder in encoders(name, size):
            for _ in range(2):  # from the tokenizer, then from memory
                assert encoder.encode(text, "salt", add_special_tokens=add_special_tokens) == whole


@pytest.mark.parametrize("name", STYLES)
@given(data=st.data())
def test_ids_of_parts_are_the_ids_of_the_whole(name: str, data: st.DataObject) -> None:
    _, plan = proven(name)
    assert_same(name, data.draw(adversarial(plan)))


@pytest.mark.parametrize("name", STYLES)
def test_seeded_texts_and_long_documents_are_the_same(name: str) -> None:
    _, plan = proven(name)
    for text in seeded(plan, 7, 60):
        assert_same(name, text)


@pytest.mark.parametrize("name", STYLES)
def test_every_style_has_cuts_and_passes_its_self_test(name: str) -> None:
    copy, plan = proven(name)
    assert plan.cuts
    assert check(copy, plan, rng=random.Random(3)) is None


@pytest.mark.parametrize("name", STYLES)
def test_what_is_known_of_a_style(name: str) -> None:
    _, plan = proven(name)
    assert (plan.anchor is not None) == (name in ANCHORED)
    assert (plan.chunks.lines if plan.chunks else None) == CHUNKED.get(name)


@pytest.mark.parametrize("name", [name for name, style in STYLES.items() if style.template])
def test_special_tokens_are_put_around_every_text(name: str) -> None:
    copy, _ = proven(name)
    whole = copy.encode("some text", add_special_tokens=True).ids
    assert encoders(name)[0].encode("some text", "", add_special_tokens=True) == whole
    assert whole != copy.encode("some text", add_special_tokens=False).ids


FLAGS = st.fixed_dictionaries(
    {flag: st.booleans() for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
)
CONTENTS = st.one_of(
    st.sampled_from(
        ("<a>", "<a>>", "a>", "<", "><", "<|x|>", "|x", "x|><", "word", " a", "a ", "a b", "\n", "\nb", "  ", "é", "aa")
    ),
    st.text(alphabet="<>|ab \n", min_size=1, max_size=5),
)


@given(
    name=st.sampled_from(("gpt2", "qwen", "llama3", "mistral", "gemma", "llama2", "wordpiece")),
    tokens=st.lists(st.tuples(CONTENTS, FLAGS), min_size=1, max_size=6),
    texts=st.lists(
        st.lists(st.sampled_from((*SPACES, *WORDS, "<a>", "a>", "b")), max_size=12).map("".join), max_size=6
    ),
    data=st.data(),
)
def test_any_added_tokens_are_exact_or_refused(
    name: str, tokens: list[tuple[str, dict[str, bool]]], texts: list[str], data: st.DataObject
) -> None:
    made = Tokenizer.from_str(trained(name).to_str())
    for content, flags in tokens:
        special = flags["special"]
        token = AddedToken(content, **flags)
        (made.add_special_tokens if special else made.add_tokens)([token])
    copy, plan = private_copy(made)
    if isinstance(plan, PlainOnly):
        assert plan.reason in {Reason.NO_CUTS, Reason.NO_ANCHOR}
        return
    cache = TokenCache(CACHE_BYTES)
    pair = (PartEncoder(copy, plan, cache), PartEncoder(copy, plan, cache, owner=1, chunk_characters=1))
    contents = st.sampled_from([content for content, _ in tokens] + [cut.content for cut in plan.cuts[:3]] + ["a", " "])
    for text in (*texts, *("".join(data.draw(st.lists(contents, max_size=10))) for _ in range(3))):
        try:
            with no_panic():
                whole = copy.encode(text, add_special_tokens=False).ids
        except PartError:
            continue  # some sets of tokens make the library itself panic
        for encoder in pair:
            assert encoder.encode(text, "") == whole


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["qwen", "llama3", "mistral", "gemma"])
def test_ten_thousand_texts_with_a_large_vocabulary(name: str) -> None:
    copy, plan = proven(name, BIG)
    assert copy.get_vocab_size() > 50_000
    for text in seeded(plan, 11, 10_000):
        assert_same(name, text, BIG)
