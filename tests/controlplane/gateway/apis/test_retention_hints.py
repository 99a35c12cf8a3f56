"""What clients say of caching: how long a prompt is to be kept, and which prompts belong together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.apis.parse import parse, upstream_body
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.know.render_cache import digest
from cachefleet_controlplane.gateway.request.resume_eligibility import resumable
from cachefleet_controlplane.wire.errors import ApiError
from tests.reference.request_bodies import MAX_CACHE_KEY

OPENAI = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES)
FIVE, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


def ask(endpoint: Endpoint, **body: Any) -> RequestInfo:
    return parse(json.dumps({"model": "m", **body}).encode(), endpoint)


def xargs(endpoint: Endpoint, **body: Any) -> Any:
    """What a worker is sent as ``vllm_xargs``."""
    sent, _ = upstream_body(ask(endpoint, **body), model="m", salt="s")
    return json.loads(sent).get("vllm_xargs")


def block(text: str = "x", **marker: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **marker}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


@pytest.mark.parametrize("endpoint", OPENAI)
def test_a_day_is_asked_for_by_prompt_cache_retention(endpoint: Endpoint) -> None:
    assert xargs(endpoint, prompt_cache_retention="24h") == {"cachefleet_keep": 86_400}
    for usual in ("in_memory", "in-memory", None):
        assert xargs(endpoint, prompt_cache_retention=usual) is None
    given = {"mine": 1, "cachefleet_keep": 300}
    assert xargs(endpoint, prompt_cache_retention="24h", vllm_xargs=given) == {"mine": 1, "cachefleet_keep": 86_400}
    assert xargs(endpoint, vllm_xargs=given) == {"mine": 1}
    assert xargs(endpoint, prompt_cache_retention="24h", vllm_xargs=[1]) == [1]


@pytest.mark.parametrize("endpoint", OPENAI)
@pytest.mark.parametrize("value", ["1h", "", "24H", 24, True, {}])
def test_another_retention_is_a_400(endpoint: Endpoint, value: object) -> None:
    if value == "":
        assert xargs(endpoint, prompt_cache_retention=value) is None
        return
    with pytest.raises(ApiError) as error:
        ask(endpoint, prompt_cache_retention=value)
    assert (error.value.status, error.value.param) == (400, "prompt_cache_retention")


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({}, None),
        ({"cache_control": FIVE}, 300),
        ({"system": [block(cache_control=FIVE)]}, 300),
        ({"tools": [{"name": "t", "input_schema": {}, "cache_control": HOUR}]}, 3600),
        ({"messages": [user(block(), block(cache_control=FIVE))]}, 300),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "content": [block(cache_control=HOUR)]}]}
                ]
            },
            3600,
        ),
        (
            {
                "system": [block(cache_control=HOUR)],
                "messages": [{"role": "user", "content": [block(cache_control=FIVE)]}],
            },
            3600,
        ),
        ({"system": [block(cache_control=None)], "cache_control": None}, None),
        ({"system": "cache_control", "messages": [{"role": "user", "content": '"cache_control"'}]}, None),
        ({"messages": [{"role": "user", "content": [block(text="cache_control")]}]}, None),
        ({"messages": [{"role": "user", "content": [1, {"cache_control": FIVE}]}]}, None),
        ({"messages": {"cache_control": FIVE}}, None),
    ],
)
def test_the_longest_time_of_all_breakpoints_is_asked_for(body: dict[str, Any], seconds: int | None) -> None:
    assert xargs(Endpoint.MESSAGES, **body) == (seconds and {"cachefleet_keep": seconds})
    assert xargs(Endpoint.COUNT_TOKENS, **body) is None
    assert xargs(Endpoint.CHAT, **body) is None


@pytest.mark.parametrize("marker", [{"type": "persistent"}, {"type": "ephemeral", "ttl": "24h"}, {}, "5m", 1, []])
def test_another_breakpoint_is_a_400(marker: object) -> None:
    for body in ({"cache_control": marker}, {"system": [block(cache_control=marker)]}):
        with pytest.raises(ApiError) as error:
            ask(Endpoint.MESSAGES, **body)
        assert (error.value.status, error.value.param) == (400, "cache_control")


def test_what_is_nested_deeper_than_any_breakpoint_is_not_read() -> None:
    nested: list[Any] = [block(cache_control={"ttl": "never"})]
    for _ in range(40):
        nested = [{"type": "tool_result", "content": nested}]
    assert xargs(Endpoint.MESSAGES, messages=[user(*nested)]) is None


def test_a_key_is_read_where_there_are_prompts_and_bounded() -> None:
    for endpoint in (*OPENAI, Endpoint.MESSAGES):
        assert ask(endpoint, prompt_cache_key="k").cache_key == "k"
    assert ask(Endpoint.EMBEDDINGS, prompt_cache_key=1, input="x").cache_key == ""
    for value in (1, "x" * (MAX_CACHE_KEY + 1)):
        with pytest.raises(ApiError) as error:
            ask(Endpoint.CHAT, prompt_cache_key=value)
        assert (error.value.status, error.value.param) == (400, "prompt_cache_key")


def test_what_is_said_of_caching_shapes_no_prompt_and_hinders_no_resumption() -> None:
    hints = {"prompt_cache_key": "k", "prompt_cache_retention": "24h"}
    plain, said = ask(Endpoint.CHAT, messages=[]), ask(Endpoint.CHAT, messages=[], **hints)
    assert digest("/x", said.fields, renderer="r") == digest("/x", plain.fields, renderer="r")
    assert resumable(said, parsed=False)
