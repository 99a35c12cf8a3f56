"""Which tokenizers are encoded in parts, which tokens cut, and why the others are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from cachefleet_worker.plugin.tokens.added_tokens import MAX_CUT_CHARACTERS, Side, added_tokens, cuts
from cachefleet_worker.plugin.tokens.chunks import Chunker, ChunkRule
from cachefleet_worker.plugin.tokens.encoding_plan import PlainOnly, Plan, Reason, make_plan
from tests.worker.plugin.tokens.styles import LLAMA3, special, trained

Description = dict[str, Any]


def described(*tokens: AddedToken, normalizer: Any = None, pre_tokenizer: Any = None) -> Description:
    made = Tokenizer(models.BPE())
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_tokens(list(tokens))
    description: Description = json.loads(made.to_str())
    return description


def cut_at(*tokens: AddedToken) -> dict[str, Side]:
    return {cut.content: cut.side for cut in cuts(added_tokens(described(*tokens)))}


def planned(description: Description) -> Plan:
    plan = make_plan(description)
    assert isinstance(plan, Plan), plan
    return plan


def refused(description: Description) -> Reason:
    refusal = make_plan(description)
    assert isinstance(refusal, PlainOnly)
    return refusal.reason


@pytest.mark.parametrize(
    ("token", "side"),
    [
        (special("<a>"), Side.BOTH),
        (special("<a>", lstrip=True), Side.AFTER),
        (special("<a>", rstrip=True), Side.BEFORE),
        (AddedToken("<a>", normalized=False, special=False), Side.BOTH),
        (special("<a>", lstrip=True, rstrip=True), None),
        (special("<a>", single_word=True), None),
        (special("<a>", normalized=True), None),
        (special("\n\t"), None),
        (special("<" + "a" * MAX_CUT_CHARACTERS), None),
        (special("<\0>"), None),
    ],
)
def test_flags_decide_on_which_side_a_token_cuts(token: AddedToken, side: Side | None) -> None:
    assert cut_at(token) == ({} if side is None else {token.content: side})


@pytest.mark.parametrize(
    ("first", "second", "cutting"),
    [
        ("<a>", "<b>", {"<a>", "<b>"}),
        ("<a>", "<a>>", {"<a>>"}),  # the longer one wins where both fit
        ("<a>", "x<a", {"x<a"}),  # begins before it and takes its head
        ("<a>", "x<a>y", {"x<a>y"}),  # holds it
        ("abab", "<b>", {"<b>"}),  # overlaps itself
        ("<a>", "a><", set()),  # each begins inside the other
    ],
)
def test_a_token_that_another_could_swallow_does_not_cut(first: str, second: str, cutting: set[str]) -> None:
    assert set(cut_at(special(first), special(second))) == cutting


def test_a_token_that_looks_at_its_neighbours_needs_plain_edges() -> None:
    assert set(cut_at(special("<a>"), special("b"), special("<c_"))) == {"<a>", "b", "<c_"}
    assert set(cut_at(special("<a>"), special("b"), special("<c_"), special("w", single_word=True))) == {"<a>"}
    assert set(cut_at(special("<a>"), special(" b>"))) == {"<a>", " b>"}
    assert set(cut_at(special("<a>"), special(" b>"), special("<m>", lstrip=True))) == {"<a>", "<m>"}


def test_a_normalized_token_is_no_obstacle_to_others() -> None:
    assert set(cut_at(special("<a>"), special("<a>>", normalized=True))) == {"<a>"}


def change_model(**fields: Any) -> Callable[[Description], None]:
    return lambda description: description["model"].update(fields)


def change(**fields: Any) -> Callable[[Description], None]:
    return lambda description: description.update(fields)


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (change_model(dropout=0.1), Reason.RANDOM),
        (change_model(type="Unigram", alpha=0.5), Reason.RANDOM),
        (change_model(type="Unigram", nbest_size=3), Reason.RANDOM),
        (change_model(type="Monkey"), Reason.UNKNOWN_COMPONENT),
        (change(normalizer={"type": "Monkey"}), Reason.UNKNOWN_COMPONENT),
        (change(pre_tokenizer={"type": "Monkey"}), Reason.UNKNOWN_COMPONENT),
        (
            change(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "Monkey"}]}),
            Reason.UNKNOWN_COMPONENT,
        ),
        (change(pre_tokenizer={"type": "Sequence"}), Reason.MALFORMED),
        (change(added_tokens=[{"content": "<a>"}]), Reason.MALFORMED),
        (change(model=None), Reason.MALFORMED),
        (change(added_tokens=[], pre_tokenizer=None), Reason.NO_CUTS),
    ],
)
def test_what_is_refused_says_why(break_it: Callable[[Description], None], reason: Reason) -> None:
    description = described(special("<a>"))
    assert isinstance(make_plan(description), Plan)
    break_it(description)
    assert refused(description) is reason
    assert reason.value in str(make_plan(description))


def test_dropout_of_zero_is_none() -> None:
    description = described(special("<a>"))
    description["model"]["dropout"] = 0.0
    assert isinstance(make_plan(description), Plan)


def test_old_conversions_with_normalized_special_tokens_are_refused() -> None:
    description = json.loads(trained("llama2").to_str())
    for token in description["added_tokens"]:
        token["normalized"] = True
    assert refused(description) is Reason.NO_CUTS


def test_a_first_part_that_differs_needs_an_anchor() -> None:
    first = pre_tokenizers.Metaspace(prepend_scheme="first")
    assert planned(described(special("<r>", rstrip=True), special("<a>"), pre_tokenizer=first)).anchor is not None
    assert refused(described(special("<r>", rstrip=True), pre_tokenizer=first)) is Reason.NO_ANCHOR
    assert planned(described(special("<a>"), pre_tokenizer=pre_tokenizers.Metaspace())).anchor is None


def split(pattern: str, behavior: str = "isolated", *, invert: bool = False) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, ChunkRule(lines=False)),
        ({"pre_tokenizer": split(LLAMA3)}, ChunkRule(lines=True)),
        ({"pre_tokenizer": split(LLAMA3, "removed", invert=True)}, ChunkRule(lines=True)),
        ({"pre_tokenizer": split(LLAMA3, "merged_with_next")}, None),
        ({"pre_tokenizer": split(LLAMA3 + "|x y")}, None),
        ({"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Digits(), split(LLAMA3)])}, ChunkRule(lines=True)),
        (
            {
                "pre_tokenizer": pre_tokenizers.Sequence(
                    [split(LLAMA3), pre_tokenizers.Metaspace(prepend_scheme="first")]
                )
            },
            ChunkRule(lines=False),
        ),
        ({"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), split(LLAMA3)])}, None),
        (
            {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_next"), split(LLAMA3)])},
            None,
        ),
        ({"pre_tokenizer": pre_tokenizers.WhitespaceSplit()}, ChunkRule(lines=False)),
        ({"pre_tokenizer": pre_tokenizers.ByteLevel(use_regex=False)}, None),
        ({"pre_tokenizer": pre_tokenizers.Metaspace()}, ChunkRule(lines=False)),
        ({"pre_tokenizer": pre_tokenizers.Metaspace(replacement="_")}, None),
        ({"pre_tokenizer": pre_tokenizers.Metaspace(split=False)}, None),  # "▁" is not in this vocabulary
        ({"normalizer": normalizers.NFC()}, ChunkRule(lines=False)),
        ({"normalizer": normalizers.NFKC()}, None),
        ({"normalizer": normalizers.Replace(" ", "▁")}, None),
        ({"normalizer": normalizers.Replace("  ", " ")}, None),
    ],
)
def test_long_parts_are_cut_only_where_it_is_known_to_be_exact(changes: dict[str, Any], rule: ChunkRule | None) -> None:
    assert planned(described(special("<a>"), **changes)).chunks == rule


@pytest.mark.parametrize(
    ("token", "rule"),
    [
        (special("<r>", rstrip=True), None),
        (special("a b"), None),
        (special(" ", single_word=True), None),
        (special(" a", single_word=True), None),
        (special("\n", single_word=True), None),
        (special("a", single_word=True), ChunkRule(lines=True)),
        (special("<l>", lstrip=True), ChunkRule(lines=False)),
        (special("  "), ChunkRule(lines=True)),
        (special("\nb"), ChunkRule(lines=False)),
    ],
)
def test_added_tokens_that_reach_over_a_place_forbid_it(token: AddedToken, rule: ChunkRule | None) -> None:
    assert planned(described(special("<a>"), token, pre_tokenizer=split(LLAMA3))).chunks == rule


@pytest.mark.parametrize("change", [{"ignore_merges": True}, {"type": "Unigram"}])
def test_text_that_is_not_split_before_the_model_is_cut_only_for_plain_merges(change: dict[str, Any]) -> None:
    description = json.loads(trained("gemma").to_str())
    assert planned(description).chunks == ChunkRule(lines=False)
    description["model"] |= change
    assert planned(description).chunks is None


def test_an_entry_that_reaches_into_the_next_word_forbids_cuts() -> None:
    description = json.loads(trained("mistral").to_str())
    assert planned(description).chunks is not None
    description["model"]["vocab"]["a▁b"] = 99_999
    assert planned(description).chunks is None


def test_chunks_are_as_long_as_asked_and_keep_when_the_text_grows() -> None:
    chunker = Chunker.of(ChunkRule(lines=True), 10)
    text = "some words in a row, and more\nlines of them " * 3
    chunks = list(chunker.chunks(text))
    assert "".join(chunks) == text
    assert all(10 <= len(chunk) < 20 for chunk in chunks[:-1])
    grown = list(chunker.chunks(text + "and the rest"))
    assert grown[: len(chunks) - 1] == chunks[:-1]


@pytest.mark.parametrize("text", ["漢" * 50, "é é é é é é é é é é é", "a" * 40, "a\xa0b" * 20, "\n\n" * 20])
def test_where_no_place_is_allowed_a_part_stays_whole(text: str) -> None:
    assert list(Chunker.of(ChunkRule(lines=True), 10).chunks(text)) == [text]
