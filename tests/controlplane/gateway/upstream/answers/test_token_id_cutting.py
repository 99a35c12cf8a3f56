"""Ids cut out by bytes: the same that taking the JSON apart leaves, whatever texts say."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.upstream.answers.token_id_cutting import can_be_cut, count_ids, cut_ids

TEXTS = st.text() | st.sampled_from(['"token_ids":[1]', '\\"token_ids":[', '],"prompt_token_ids":[', '"choices":[{'])
IDS = st.none() | st.lists(st.integers(0, 1 << 20), max_size=4)
CHOICES = st.lists(st.fixed_dictionaries({"text": TEXTS, "token_ids": IDS, "prompt_token_ids": IDS}), min_size=1)
ANSWERS = st.fixed_dictionaries({"id": TEXTS, "choices": CHOICES, "prompt_token_ids": IDS, "usage": st.none()})


def without(told: Any) -> Any:
    gone = {name: None for name in ("token_ids", "prompt_token_ids") if name in told}
    return told | gone


@given(ANSWERS)
def test_ids_are_gone_and_nothing_else_is(answer: dict[str, Any]) -> None:
    data = msgspec.json.encode(answer)
    assert can_be_cut(data)
    expected = without(answer) | {"choices": [without(choice) for choice in answer["choices"]]}
    assert cut_ids(data) == msgspec.json.encode(expected)


def test_what_is_no_answer_or_holds_a_connectors_members_is_not_cut() -> None:
    assert not can_be_cut(b'{"choices":7,"token_ids":[1]}')
    told = {"choices": [{"token_ids": [1]}], "kv_transfer_params": {"token_ids": [2]}}
    assert not can_be_cut(json.dumps(told, separators=(",", ":")).encode())


def test_what_does_not_end_stays() -> None:
    assert cut_ids(b'{"choices":[{"token_ids":[1,2') == b'{"choices":[{"token_ids":[1,2'


@given(ANSWERS)
def test_ids_are_counted_as_they_are(answer: dict[str, Any]) -> None:
    lists = [answer["prompt_token_ids"], *(choice["prompt_token_ids"] for choice in answer["choices"])]
    produced = sum(len(choice["token_ids"] or ()) for choice in answer["choices"])
    assert count_ids(msgspec.json.encode(answer)) == (produced, max(len(ids or ()) for ids in lists))
