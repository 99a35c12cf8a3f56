"""What is read off a worker's events: ids of a prompt are many, and are read only where somebody asks for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.retry.stream_join import Stopping, StreamJoiner
from cachefleet_controlplane.gateway.send.answers.produced_tokens import Produced


def told(**members: Any) -> bytes:
    return json.dumps({"id": "a", "choices": [{"index": 0, "text": "x", "token_ids": [9]}]} | members).encode()


@pytest.mark.parametrize("where", ["top", "choice"])
def test_a_prompts_ids_are_those_told_first(where: str) -> None:
    produced, ids = Produced(), {"prompt_token_ids": [1, 2, 3]}
    produced.note(told())
    assert produced.prompt_ids == []
    produced.note(told(**ids) if where == "top" else told(choices=[{"text": "y", **ids}]))
    produced.note(told(prompt_token_ids=[4]))
    assert produced.tells_prompt
    assert produced.prompt_ids == [1, 2, 3]
    assert produced.text.startswith("x")


@pytest.mark.parametrize("ids", [None, []])
def test_no_ids_are_none(ids: list[int] | None) -> None:
    produced = Produced()
    produced.note(told(prompt_token_ids=ids))
    assert not produced.tells_prompt
    assert produced.prompt_ids == []


@pytest.mark.parametrize("ids", ["ab", {"a": 1}, [1, "a"], [1.5], 7])
def test_what_are_no_ids_leaves_nothing_to_go_on_with(ids: Any) -> None:
    joiner = StreamJoiner(Stopping())
    joiner.feed(b"data: " + told(prompt_token_ids=ids) + b"\n\n")
    assert joiner.produced == [9]
    joiner.resume(1)
    assert not joiner.prompt_ids


def test_of_one_workers_whole_answer_nothing_has_to_be_known() -> None:
    ended, joiner = StreamJoiner(Stopping()), StreamJoiner(Stopping())
    assert ended.whole(b"not even JSON") == b"not even JSON"
    assert not ended.handed_back
    given_up = told(prompt_token_ids=[1], choices=[{"text": "x", "token_ids": [9], "finish_reason": "cache_threshold"}])
    joiner.whole(given_up)
    assert joiner.handed_back
    assert joiner.can_resume
