"""Which requests can go on at another worker, and how it is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.request.resume_eligibility import (
    appended,
    carried,
    marked,
    rest_body,
    resumable,
    unmarked,
)

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def ask(endpoint: Endpoint = Endpoint.CHAT, /, **fields: Any) -> Any:
    given = CHAT if endpoint is Endpoint.CHAT else {"model": "tiny", "prompt": "hello"}
    return parse(json.dumps(given | fields).encode(), endpoint)


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0.3, "top_p": 0.5, "stop": ["a"]},
        {"n": 1, "frequency_penalty": 0, "seed": None, "response_format": {"type": "text"}, "repetition_penalty": 1.1},
        {"max_tokens": 7, "min_tokens": 3},
        {"max_tokens": 7, "ignore_eos": True, "cache_hit_threshold": 0, "return_token_ids": True},
    ],
)
def test_plain_sampling_can_go_on_elsewhere(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    assert resumable(ask(endpoint, **fields), parsed=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}},
        {"seed": 5},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -1},
        {"echo": True},
        {"something_new": 1},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)
def test_what_depends_on_more_than_its_tokens_cannot(fields: dict[str, Any]) -> None:
    assert not resumable(ask(**fields), parsed=False)


def test_nor_can_a_chat_whose_answer_a_parser_takes_apart() -> None:
    assert not resumable(ask(), parsed=True)
    assert resumable(ask(Endpoint.COMPLETIONS), parsed=True)


def test_nor_can_several_prompts() -> None:
    assert not resumable(ask(Endpoint.COMPLETIONS, prompt=["a", "b"]), parsed=False)


def test_the_mark_is_appended_where_there_is_nothing_else() -> None:
    for given in (b'{"model":"m"}', b'{"model":"m","prompt":"\\"vllm_xargs\\""}'):
        fields = json.loads(given)
        assert appended(given, len(fields)) == marked(given)


def test_the_mark_is_added_to_what_the_client_said() -> None:
    for given, expected in (("{}", {}), ('{"vllm_xargs":null}', {}), ('{"vllm_xargs":{"a":1}}', {"a": 1})):
        body, members = marked(given.encode())
        assert (json.loads(body), members) == ({"vllm_xargs": expected | {"cachefleet_resumable": 1}}, 1)


@pytest.mark.parametrize("xargs", ['"x"', "[1]", "5", "true"])
def test_what_the_engine_will_refuse_stays_as_it_is(xargs: str) -> None:
    body = f'{{"vllm_xargs":{xargs}}}'.encode()
    assert (marked(body), unmarked(body)) == ((body, 1), body)


def test_the_rest_is_a_completion_of_what_there_is() -> None:
    sent = CHAT | {"max_completion_tokens": 50, "temperature": 0.5, "cache_salt": "s", "return_token_ids": True}
    sent |= {"vllm_xargs": {"cachefleet_resumable": 1}, "stream": True, "stop": ["x"], "chat_template": "t"}
    rest = json.loads(rest_body(json.dumps(sent).encode(), prompt_ids=[1, 2], produced=[3], budget=49))
    assert rest == {
        **{name: sent[name] for name in ("model", "temperature", "cache_salt", "return_token_ids", "vllm_xargs")},
        "stream": True,
        "stop": ["x"],
        "prompt": [1, 2, 3],
        "max_tokens": 49,
        "cache_hit_threshold": 0,
    }


def test_what_is_kept_of_a_body_asks_for_the_same_rest_without_its_prompt() -> None:
    sent = json.dumps(CHAT | {"temperature": 0.5, "stream": True, "max_tokens": 9, "stop": ["x"]}).encode()
    kept = carried(sent)
    rests = [rest_body(body, prompt_ids=[1, 2], produced=[3], budget=8) for body in (sent, kept)]
    assert rests[0] == rests[1]
    assert b"hello" not in kept


@pytest.mark.parametrize(("least", "expected"), [(9, {"min_tokens": 9}), (0, {}), (-2, {})])
def test_the_least_of_tokens_counts_what_was_produced(least: int, expected: dict[str, int]) -> None:
    sent = json.dumps(CHAT | {"min_tokens": 10}).encode()
    rest = json.loads(rest_body(sent, prompt_ids=[1, 2], produced=[3], budget=49, least=least))
    assert {name: rest[name] for name in rest if name == "min_tokens"} == expected


@pytest.mark.parametrize("name", ["skip_special_tokens", "temperature", "stop"])
def test_what_is_null_is_left_out_of_the_rest(name: str) -> None:
    """The model's default everywhere; another worker's release may know no null there (vLLM 0.32, 0.33)."""
    sent = json.dumps(CHAT | {"top_p": 0.5, name: None}).encode()
    assert resumable(ask(top_p=0.5, **{name: None}), parsed=False)
    for body in (sent, carried(sent)):
        rest = json.loads(rest_body(body, prompt_ids=[1], produced=[2], budget=8))
        assert name not in rest
        assert rest["top_p"] == 0.5
