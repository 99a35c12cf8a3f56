from __future__ import annotations

import msgspec
import pytest

from cachefleet_runtime.sse import event_data
from cachefleet_worker.agent import auth
from cachefleet_worker.agent.handles.produced_tokens import Produced, event_of, with_member


def test_an_event_carries_a_value() -> None:
    assert event_data(event_of({"a": 1})) == b'{"a":1}'


def test_pieces_add_up() -> None:
    produced = Produced()
    for ids, finish in (([1, 2], None), ([3], "length")):
        logprobs = {"content": [{"token_id": token, "logprob": -0.5} for token in ids]}
        choice = {"index": 0, "token_ids": ids, "finish_reason": finish, "logprobs": logprobs}
        produced.add(msgspec.json.encode({"choices": [choice], "usage": None}))
    produced.add(b'{"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}}')
    assert (produced.ids, produced.whole, produced.prompt_tokens, produced.cached_tokens) == ([1, 2, 3], True, 9, 8)
    assert produced.logprobs == [-0.5] * 3


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"choices":[{"token_ids":["x"]}]}'])
def test_what_cannot_be_read_makes_no_handle(content: bytes) -> None:
    produced = Produced(finish_reason="stop")
    produced.add(content)
    assert not produced.whole


@pytest.mark.parametrize("finish", ["abort", "error", "cache_threshold", ""])
def test_only_an_answer_that_ended_by_itself_is_whole(finish: str) -> None:
    assert not Produced(finish_reason=finish).whole


def test_a_member_is_added_and_the_others_stay_as_they_are() -> None:
    assert with_member(b'{"a": 1.50, "b": [ ]}', "c", None) == b'{"a":1.50,"b":[ ],"c":null}'
    with pytest.raises(ValueError, match="object"):
        with_member(b"[]", "c", 1)


def test_a_key_that_is_no_ascii_is_wrong_and_breaks_nothing() -> None:
    assert auth.refusal({"X-Cachefleet-Token": "\udcff"}, "key") == "wrong_token"
    assert auth.refusal({"X-Cachefleet-Token": "é"}, "é") == ""
