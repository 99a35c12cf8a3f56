"""Safe boundaries: one past a token that starts a message, proposed by style, verified by the next render."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_worker.plugin.tokens.boundaries import STYLES, Marks, Style, deepest, detect, propose, verified

START, END, A, B = 90, 91, 1, 2
CHATML = Marks("chatml", frozenset({START}))


@pytest.mark.parametrize(
    ("tokens", "template", "style"),
    [
        (("<|im_start|>", "<|im_end|>"), "", "chatml"),
        (("<|im_start|>", "<|im_end|>"), "{{ '<|im_start|>' }}", "chatml"),
        (("<|im_start|>",), "{{ '<|user|>' }}", None),  # a token that this template never writes
        (("<|im_start|>", "<|start_header_id|>"), "<|start_header_id|>", "llama-3"),
        (("<|header_start|>",), "", "llama-4"),
        (("<start_of_turn>", "<bos>"), "<start_of_turn>", "gemma"),
        (("<|start|>", "<|message|>"), "", "harmony"),
        (("<s>", "</s>", "[INST]", "[/INST]"), "[INST]", "mistral"),
        (("<s>", "</s>"), "{{ bos_token }}<s>[INST]", "llama-2"),
        (("<s>", "</s>"), "{{ bos_token + '[INST] ' }}", "llama-2"),
        (("<s>", "</s>"), "<s>", None),
        (("<s>", "</s>"), "", None),
        (("<|user|>", "<|assistant|>"), "<|user|><|assistant|>", "phi-3"),
        (("<|im_user|>", "<|im_assistant|>"), "", "kimi"),
        (("<｜User｜>", "<｜Assistant｜>"), "", "deepseek"),  # noqa: RUF001 - its own vertical bars
        ((), "", None),
        ((), "<|im_start|>", None),
    ],
)
def test_the_style_is_told_by_the_tokens_and_the_template(
    tokens: tuple[str, ...], template: str, style: str | None
) -> None:
    found = detect({name: number for number, name in enumerate(tokens)}, template)
    assert (found.style if found else None) == style


@pytest.mark.parametrize("style", [style for style in STYLES if style.name not in {"llama-2", "mistral"}])
@pytest.mark.requirement("C6")
def test_every_style_proposes_one_past_each_of_its_starts(style: Style) -> None:
    tokens = {content: 100 + number for number, content in enumerate(style.starts)}
    marks = detect(tokens, "".join(style.starts))
    assert marks is not None
    assert marks.style == style.name
    ids = [token for start in tokens.values() for token in (start, A, B)]
    assert propose(ids, marks) == [1 + 3 * number for number in range(len(style.starts))]


def test_the_last_proposal_is_one_past_the_last_message_start() -> None:
    assert propose([START, A, END, START, B, END, START, A], CHATML) == [1, 4, 7]


def test_proposals_ascend_whichever_token_starts_a_message() -> None:
    assert propose([6, A, 5, B, 6, A, 5, B], Marks("phi-3", frozenset({5, 6}))) == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("ids", "marks", "reused"),
    [
        ([], CHATML, 0),  # an empty prompt
        ([START, A], None, 0),  # no style known
        ([A, B], CHATML, 0),  # the marker is absent
        ([A, START], CHATML, 0),  # the marker is the last token
        ([START, A, B], CHATML, 1),  # no longer than what is reused already
    ],
)
@pytest.mark.requirement("C6")
def test_degenerate_prompts_have_no_boundary(ids: list[int], marks: Marks | None, reused: int) -> None:
    assert propose(ids, marks, reused=reused) == []


def test_what_lies_within_the_reused_part_is_not_proposed() -> None:
    assert propose([START, A, START, B, START, A], CHATML, reused=3) == [5]


def test_mistral_with_tools_ends_prefixes_after_an_answer() -> None:
    tokens = {"[INST]": 5, "</s>": 6, "[AVAILABLE_TOOLS]": 7}
    marks = detect(tokens, "[INST]</s>")
    plain = [1, 5, A, 6, 5, B]
    assert propose(plain, marks) == [2, 5]
    assert propose([*plain[:4], 7, A, *plain[4:]], marks) == [4]


@pytest.mark.parametrize(
    ("boundary", "previous", "fresh", "good"),
    [
        (2, [1, 2, 3], [1, 2, 4], True),
        (3, [1, 2, 3], [1, 2, 3, 4], True),
        (3, [1, 2, 3], [1, 2, 3], False),  # nothing follows
        (3, [1, 2, 3], [1, 2, 4, 5], False),  # rendered anew
        (4, [1, 2, 3], [1, 2, 3, 4, 5], False),  # longer than what was seen
        (0, [1], [1, 2], False),
        (-1, [1, 2], [1, 2, 3], False),
        (2, [1, 2], [1], False),
    ],
)
@pytest.mark.requirement("C7")
def test_a_boundary_counts_once_the_next_render_goes_on_from_it(
    boundary: int,
    previous: list[int],
    fresh: list[int],
    good: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    assert verified(boundary, previous, fresh) is good


def test_ids_may_come_in_any_kind_of_sequence() -> None:
    assert verified(2, [1, 2, 3], (1, 2, 4))
    assert verified(2, array("I", [1, 2, 3]), [1, 2, 4])
    assert not verified(2, array("I", [1, 2, 3]), (1, 3, 4))
    assert propose(array("I", [START, A, START, B]), CHATML) == [1, 3]


STRADDLING = 0x01010101


@given(st.lists(st.sampled_from([STRADDLING, 0x01, 0x0101, 0x01010100, 0x01000000, 0xFFFFFFFF, 0]), max_size=30))
def test_a_start_that_only_seems_to_stand_between_two_ids_is_none(ids: list[int]) -> None:
    expected = [place + 1 for place, token in enumerate(ids[:-1]) if token == STRADDLING]
    assert propose(ids, Marks("any", frozenset({STRADDLING}))) == expected


def test_the_deepest_verified_boundary_wins() -> None:
    previous = [START, A, START, B, START, A]
    assert deepest([1, 3, 5], previous, [START, A, START, B, END, START]) == 3
    assert deepest([1, 3, 5], previous, [A]) is None
    assert deepest([], previous, previous) is None


@given(st.lists(st.sampled_from([START, END, A, B])), st.lists(st.sampled_from([START, END, A, B])))
def test_verified_means_a_strict_prefix(previous: list[int], fresh: list[int]) -> None:
    for boundary in range(-1, len(previous) + 2):
        assert verified(boundary, previous, fresh) == (
            0 < boundary <= len(previous) and len(fresh) > boundary and fresh[:boundary] == previous[:boundary]
        )
