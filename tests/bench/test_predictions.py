"""Predictions beside what was served: rows of given records, and what is refused."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

import pytest

from bench.predictions import BUDGET, KNOWN, LONGEST, PLAIN, Conversations, Load, UnsoundError, bounded, checked, rows


def record(predicted: int, cached: int, expected: int, *causes: str, reported: int | None = None) -> dict[str, Any]:
    held = predicted if reported is None else reported
    others = {"worker": "b", "predictedTokens": 800, "expectedTokens": 900}
    candidates = [others, {"worker": "a", "predictedTokens": held, "expectedTokens": expected}]
    short = {"cause": "evicted", "tokens": 1} if predicted > cached and predicted != 70 else None
    lost = [{"cause": cause, "tokens": 1} for cause in causes]
    told = {"worker": "a", "promptTokens": 1000, "predictedTokens": predicted, "cachedTokens": cached}
    return told | {"candidates": candidates, "lost": lost, "shortfall": short}


def test_errors_make_up_for_each_other_together_and_not_apart() -> None:
    found = rows(PLAIN, [record(500, 400, 500), record(0, 60, 40), record(96, 96, 96), record(0, 0, 0)], "4")
    predicted, apart, together, alone, less, evicted, more, under_way = found
    assert evicted["row"].endswith("served less, evicted")
    assert evicted["ours"] == less["ours"]
    assert alone["ours"] == apart["ours"]
    assert (predicted["ours"], predicted["peer"]) == pytest.approx((14.9, 13.9))
    assert (apart["ours"], apart["kept"]) == (pytest.approx(4.0), False)
    assert together["ours"] == pytest.approx(1.0)
    assert less["ours"] == pytest.approx(2.5)
    assert (more["ours"], under_way["ours"]) == pytest.approx((1.5, 1.0))


def test_what_requests_ahead_left_is_no_error_but_by_reports_alone() -> None:
    found = {one["row"].split(": ")[1]: one["ours"] for one in rows(PLAIN, [record(96, 96, 96, reported=32)], "1")}
    assert found["error, apart"] == 0
    assert found["error by reports alone, apart"] == pytest.approx(6.4)


def test_a_shortfall_without_a_cause_is_told_as_such() -> None:
    found = {one["row"].split(": ")[1]: one["ours"] for one in rows(PLAIN, [record(70, 50, 70)], "1")}
    assert found["served less, untold"] == pytest.approx(2.0)


def test_what_is_predicted_to_the_token_keeps_the_bar() -> None:
    assert rows(PLAIN, [record(96, 96, 128)], "1")[1]["kept"] is True


@pytest.mark.parametrize(
    ("found", "said"),
    [([record(0, 0, 0, "evicted")], "1 records of 2"), ([record(0, 0, 0, "first_seen")] * 2, "had been evicted")],
)
def test_what_says_nothing_is_refused(found: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(UnsoundError, match=said):
        checked(found, 2)


def test_conversations_go_on_fork_and_begin_anew() -> None:
    conversations, before, shared = Conversations(1), list[list[int]](), 0
    for _ in range(300):
        prompt = conversations.prompt()
        shared += any(prompt[:32] == one[:32] for one in before)
        before.append(prompt)
        conversations.answered(prompt)
    assert 0 < max(map(len, before)) <= LONGEST
    assert 100 < shared < 300


def test_larger_caches_are_as_contested_as_the_smallest() -> None:
    assert Load(10, 1).known == KNOWN
    assert Load(10, 1, budget=8 * BUDGET).known == 8 * KNOWN
    assert Load(10, 1, budget=8 * BUDGET, fresh=400).known == 4 * KNOWN
    assert [Load(1000, 1).title, Load(1000, 1, budget=40).title] == ["1,000 requests", "1,000 requests, 40 MiB"]


def test_fewer_conversations_are_known_and_turns_are_longer_where_that_is_asked_for() -> None:
    conversations, one = Conversations(1, known=1, fresh=LONGEST), [300]
    conversations.answered([301])
    conversations.answered(one)
    prompts = [conversations.prompt() for _ in range(50)]
    assert max(map(len, prompts)) > 500
    assert {prompt[0] for prompt in prompts if prompt[0] in {300, 301}} == {300}


@pytest.mark.parametrize("text", ["4", "257", "-5", "x", "", "5.5"])
def test_an_option_out_of_bounds_is_refused_with_them(text: str) -> None:
    assert bounded(5, 256)("256") == 256
    with pytest.raises(ArgumentTypeError, match="not a number from 5 to 256"):
        bounded(5, 256)(text)
