"""Refusals of a worker's gate, read from answers and from the beginnings of streams."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.send.answers.gate_refusals import (
    MAX_WATCHED_BYTES,
    Refusal,
    UnreadableAnswerError,
    Watch,
    refusal_of,
)
from cachefleet_runtime.sse import EventSplitter

ROLE = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
SAID = {"index": 0, "delta": {"content": "grüße 你好"}, "finish_reason": None, "token_ids": [1]}
REFUSED = {"index": 0, "delta": {"content": ""}, "finish_reason": "cache_threshold", "stop_reason": "cache_threshold"}
DONE = b"data: [DONE]\n\n"


def event(*choices: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"id": "c", "choices": choices}, ensure_ascii=False).encode() + b"\n\n"


def at(index: int, choice: dict[str, Any]) -> dict[str, Any]:
    return choice | {"index": index}


def judged(events: list[bytes], choices: int = 1) -> tuple[bool, bool]:
    watch = Watch(choices)
    for one in events:
        watch.feed(one)
    return watch.decided, watch.refused


def whole(*choices: dict[str, Any], **rest: Any) -> bytes:
    return json.dumps({"choices": choices} | rest).encode()


def details(preempted: int = 0) -> dict[str, Any]:
    return {"cache_threshold": {"hit_tokens": 32, "prompt_tokens": 100, "threshold": 0.5, "preempted": preempted}}


def test_a_role_alone_decides_nothing() -> None:
    assert judged([event(ROLE)]) == (False, False)
    assert judged([b": comment\n\n", b"data: {broken\n\n", event()]) == (False, False)


def test_b17_a_role_and_a_refusal() -> None:
    assert judged([event(ROLE), event(REFUSED)]) == (True, True)
    plain = {"index": 0, "text": "", "finish_reason": "cache_threshold"}
    assert judged([event(plain)]) == (True, True)
    stop = {"index": 0, "text": "", "finish_reason": "stop", "stop_reason": "cache_threshold", "token_ids": []}
    assert judged([event(stop)]) == (True, True)


@pytest.mark.parametrize(
    "said",
    [
        SAID,
        {"index": 0, "delta": {"tool_calls": [{}]}},
        {"index": 0, "delta": {"reasoning": "hm"}},
        {"index": 0, "delta": {}, "token_ids": [4]},
        {"index": 0, "text": "x"},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ],
)
def test_whatever_is_produced_is_no_refusal(said: dict[str, Any]) -> None:
    assert judged([event(ROLE), event(said)]) == (True, False)


def test_b17_every_choice_is_looked_at() -> None:
    roles = [event(ROLE), event(at(1, ROLE))]
    assert judged([*roles, event(SAID)], 2) == (False, False)
    assert judged([*roles, event(SAID), event(at(1, SAID))], 2) == (True, False)
    assert judged([*roles, event(SAID), event(SAID), event(at(1, REFUSED))], 2) == (True, True)


def test_an_answer_given_up_after_tokens_is_no_refusal() -> None:
    handed = REFUSED | {"token_ids": [7]}
    assert judged([event(ROLE), event(handed)]) == (True, False)
    assert refusal_of(whole(handed | {"message": {"content": "x"}}, kv_transfer_params=details(1))) is None


def test_a_stream_that_ends_was_not_refused() -> None:
    assert judged([event(ROLE), DONE]) == (True, False)


def test_what_cannot_be_held_back_any_longer_counts_as_refused_where_choices_are_open() -> None:
    long = event(SAID | {"delta": {"content": "x" * MAX_WATCHED_BYTES}})
    assert judged([event(ROLE), long], 2) == (True, True)
    assert judged([long]) == (True, False)


def test_whole_answers() -> None:
    refused = {"index": 0, "message": {"content": ""}, "finish_reason": "cache_threshold", "token_ids": []}
    assert refusal_of(whole(refused, kv_transfer_params=details())) == Refusal(32)
    assert refusal_of(whole(refused)) == Refusal(None)
    fine = {"index": 0, "message": {"content": "the cache_threshold"}, "finish_reason": "stop", "token_ids": [1]}
    assert refusal_of(whole(fine)) is None
    assert refusal_of(whole(fine, at(1, refused))) == Refusal(None)
    assert refusal_of(whole(fine | {"stop_reason": "cache_threshold"})) is None


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[1]", b'{"choices": 7}', b'{"choices": []}x', b"\xff"])
def test_b18_what_is_no_answer_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(UnreadableAnswerError):
        refusal_of(body)


@pytest.mark.parametrize("last", [REFUSED, SAID], ids=["refused", "answered"])
def test_b17_a_stream_may_be_split_at_every_byte(last: dict[str, Any]) -> None:
    stream = event(ROLE) + event(SAID | {"index": 1}) + event(last | {"stop_reason": "grüße"}) + DONE
    expected = judged([event(ROLE), event(SAID | {"index": 1}), event(last)], 2)
    assert expected == (True, last is REFUSED)
    for at_byte in range(len(stream) + 1):
        splitter = EventSplitter(1 << 20)
        parts = [*splitter.feed(stream[:at_byte]), *splitter.feed(stream[at_byte:])]
        assert b"".join(parts) == stream
        assert judged(parts, 2) == expected
    one_by_one = EventSplitter(1 << 20)
    events = [found for byte in stream for found in one_by_one.feed(bytes([byte]))]
    assert judged(events, 2) == expected


@given(st.permutations([0, 1, 2]), st.sets(st.integers(0, 2)), st.lists(st.integers(0, 2), max_size=6))
def test_refused_is_whoever_has_a_choice_refused(order: list[int], refused: set[int], more: list[int]) -> None:
    begun = [event(at(index, REFUSED if index in refused else SAID)) for index in order]
    later = [event(at(index, SAID)) for index in more if index not in refused]
    roles = [event(at(index, ROLE)) for index in range(3)]
    assert judged([*roles, *begun, *later], 3) == (True, bool(refused))
