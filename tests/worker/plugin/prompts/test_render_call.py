"""Calls are the same where everything that shapes the prompt is the same, and in no other case."""

from __future__ import annotations

import copy
from array import array
from dataclasses import dataclass
from typing import Any

import pytest

from cachefleet_worker.plugin.prompts.render_call import Call, call, rendered


@dataclass
class Params:
    template: str | None = None
    kwargs: Any = None


@dataclass
class Others:
    template: str | None = None
    kwargs: Any = None


GIVEN: dict[str, Any] = {
    "conversations": [[{"role": "user", "content": [{"type": "text", "text": "字"}], "calls": None}]],
    "chat_params": Params("t", {"tools": [{"n": 1}], "deep": (1, 2)}),
    "tok_params": None,
    "prompt_extras": {"cache_salt": "s"},
}


def made(**changes: Any) -> Call | None:
    return call("render_chat_async", GIVEN | changes)


def test_equal_arguments_are_one_call_however_they_share_objects() -> None:
    text = "x" * 100
    apart = [[{"a": "x" * 50 + "x" * 50}, {"a": "y".replace("y", text)}]]
    assert made() == made(**copy.deepcopy(GIVEN)) == call("render_chat_async", dict(reversed(GIVEN.items())))
    assert made(conversations=[[{"a": text}, {"a": text}]]) == made(conversations=apart)


@pytest.mark.parametrize(
    "change",
    [
        {"conversations": [[{"role": "user", "content": [{"type": "text", "text": "子"}], "calls": None}]]},
        {"conversations": [[{"role": "user", "content": [{"type": "text", "text": "字"}]}]]},
        {"conversations": [[{"content": [{"type": "text", "text": "字"}], "role": "user", "calls": None}]]},
        {"chat_params": Params("t", {"tools": [{"n": True}], "deep": (1, 2)})},
        {"chat_params": Params("t", {"tools": [{"n": 1.0}], "deep": (1, 2)})},
        {"chat_params": Params("t", {"tools": [{"n": "1"}], "deep": (1, 2)})},
        {"chat_params": Params("t", {"tools": [{"n": None}], "deep": (1, 2)})},
        {"chat_params": Params("t", {"tools": [{"n": float("nan")}], "deep": (1, 2)})},
        {"chat_params": Params("t", {"tools": [{"n": 1}], "deep": [1, 2]})},
        {"chat_params": Others("t", {"tools": [{"n": 1}], "deep": (1, 2)})},
        {"tok_params": Params()},
        {"prompt_extras": {"cache_salt": "other"}},
        {"prompt_extras": {}},
        {"prompt_extras": None},
    ],
)
def test_any_difference_is_another_call(change: dict[str, Any]) -> None:
    found = made(**change)
    assert found is not None
    assert found.digest != made().digest  # type: ignore[union-attr]


def test_another_method_is_another_call() -> None:
    assert call("render_cmpl_async", GIVEN) != made()


def test_what_is_no_plain_data_cannot_be_compared() -> None:
    assert made(prompt_extras={"a": object()}) is None
    assert made(conversations=[iter([])]) is None


def token_prompt(**members: Any) -> dict[str, Any]:
    return {"type": "token", "prompt_token_ids": [1, 2, 3], "arrival_time": 1.0, "cache_salt": "s", **members}


def test_a_result_is_as_if_rendered_now_and_the_callers_own() -> None:
    one = made()
    assert one is not None
    kept = rendered(one, ([[{"role": "user", "content": "a"}]], [token_prompt()]))
    assert kept is not None
    for arrival in (5.0, 6.0):
        conversations, (found,) = kept.result(arrival=arrival)
        assert found == token_prompt(arrival_time=arrival)
        assert conversations == [[{"role": "user", "content": "a"}]]
        found["prompt_token_ids"].clear()
        conversations[0][0]["content"] = "changed"
    assert kept.ids == array("I", [1, 2, 3])


def test_completions_have_no_conversation() -> None:
    one = made()
    assert one is not None
    kept = rendered(one, [token_prompt(prompt="text")])
    assert kept is not None
    assert kept.result(arrival=2.0) == [token_prompt(prompt="text", arrival_time=2.0)]


@pytest.mark.parametrize(
    "result",
    [
        [token_prompt(), token_prompt()],
        [],
        [token_prompt(type="multimodal")],
        [{"type": "embeds", "prompt_embeds": 1}],
        [{"type": "enc_dec", "encoder_prompt": {}, "decoder_prompt": {}}],
        [token_prompt(prompt_token_ids=None)],
        ([], []),
        *([token_prompt(prompt_token_ids=ids)] for ids in ([1, 1 << 32], [-1], [0.5])),
    ],
)
def test_several_prompts_and_those_of_more_than_ids_are_not_kept(result: Any) -> None:
    one = made()
    assert one is not None
    assert rendered(one, result) is None
