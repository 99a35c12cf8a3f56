"""Native code understands bodies, and makes workers' bodies, as the plain reference does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from cachefleet_controlplane.gateway.apis.parse import parse, upstream_body
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import parse_fields
from tests.reference import request_bodies as reference

ODD = st.sampled_from(
    [
        *(
            "null",
            "true",
            "false",
            "0",
            "1",
            "2",
            "9",
            "-1",
            "-0",
            "1.0",
            "1.5",
            "0.5",
            "2e0",
            "1e999",
            "-0.0",
            "3" * 40,
        ),
        *(
            '""',
            '"1"',
            '"yes"',
            '"TRUE"',
            '" 2 "',
            '"1_0"',
            '"_1"',
            '"nan"',
            '"24h"',
            '"in_memory"',
            '"x"',
            '"\\u00e9"',
        ),
        *("[]", "{}", "[1,2]", '["a","b"]', '[ "a" ]', "[[1],[2]]", '["a"' + ',"b"' * 70 + "]", '[{"a":1}]', "[1,{}]"),
        *(
            '{"include_usage":true}',
            '{"include_usage":0,"continuous_usage_stats":true}',
            '{"cache_hit_threshold":0.25}',
        ),
        *('{"cache_hit_threshold":7}', '{"kv_transfer_params":1,"cachefleet_x":2,"a":3}', '{"a":1,"\\u0061":2}'),
        *('{"type":"ephemeral"}', '{"type":"ephemeral","ttl":"1h"}', '{"type":"ephemeral","ttl":null}', '{"ttl":"1h"}'),
        *('"' + "k" * 1024 + '"', '"' + "\u00e9" * 1025 + '"', '{"type":"text"}', '"none"', '"x-anthropic\\n\\u0001"'),
    ]
)
PART_NAMES = st.sampled_from(
    [
        "type",
        "\\u0074ype",
        "content",
        "output",
        "image_url",
        "text",
        "uuid",
        "u\\u0075id",
        "cache_control",
        "role",
        "file",
    ]
)
PART_VALUES = ODD | st.sampled_from(
    ['"image_url"', '"input_file"', '"text"', '"image\\u005furl"', '"document"', '"file"']
)


def objects(names: Any, values: Any, most: int = 4) -> Any:
    """Objects as JSON, with blanks, and names that occur twice."""
    blank = st.sampled_from(["", "", " ", "\n\t"])
    member = st.tuples(blank, names, blank, values, blank).map(lambda parts: '{}"{}"{}:{}{}'.format(*parts))
    return st.lists(member, max_size=most).map(lambda found: "{" + ",".join(found) + "}")


def lists(values: Any) -> Any:
    return st.lists(values, max_size=3).map(lambda found: "[" + ", ".join(found) + "]")


PARTS = st.recursive(
    objects(PART_NAMES, PART_VALUES), lambda inner: objects(PART_NAMES, PART_VALUES | lists(inner | ODD)), max_leaves=6
)
NAMES = st.sampled_from(
    [
        *("model", "m\\u006fdel", "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens"),
        *("max_output_tokens", "messages", "input", "prompt", "prompt_embeds", "system", "tools", "instructions"),
        *("vllm_xargs", "cache_hit_threshold", "prompt_cache_key", "prompt_cache_retention", "cache_control", "echo"),
        *("prompt_logprobs", "return_token_ids", "store", "background", "conversation", "previous_response_id"),
        *("cache_salt", "priority", "prompt_cache_ref", "temperature", "seed", "response_format", "tool_choice"),
        *('\\"\\\\\\u0007', "\u00e9\\u00e9", "\\ud83d\\ude00", "/\\/\x7f"),
    ]
)
BODIES = objects(NAMES, ODD | lists(PARTS | ODD) | PARTS, most=7)


def attributes(info: RequestInfo) -> dict[str, Any]:
    found = {**asdict(info), "fields": info.fields}
    del found["ask"]
    return found


def outcome(of: Any, body: bytes, endpoint: Endpoint, *, trusted: bool) -> Any:
    try:
        return of(body, endpoint, trusted=trusted)
    except ApiError as error:
        return error


def same(body: bytes, endpoint: Endpoint, *, trusted: bool) -> None:
    expected = outcome(reference.facts, body, endpoint, trusted=trusted)
    found = outcome(parse, body, endpoint, trusted=trusted)
    if isinstance(expected, ApiError) or isinstance(found, ApiError):
        assert [getattr(found, name) for name in ("status", "message", "param", "code")] == [
            getattr(expected, name) for name in ("status", "message", "param", "code")
        ]
        return
    assert attributes(found) == expected
    assert list(found.fields) == list(expected["fields"])
    for salt, gated in (("", False), ('s"\u00e9', True)):
        sent, members = upstream_body(found, model="m\u00e9", salt=salt, gated=gated)
        assert sent == reference.upstream(expected, model="m\u00e9", salt=salt, gated=gated)
        assert len(parse_fields(sent)) == members
    assert found.ask.visible() == reference.visible(expected["fields"])
    assert found.ask.is_plain(gated=False) == reference.is_plain(expected["fields"])


@settings(max_examples=400)
@given(BODIES, st.sampled_from(Endpoint), st.booleans())
def test_bodies_are_understood_as_by_the_reference(body: str, endpoint: Endpoint, trusted: bool) -> None:  # noqa: FBT001
    same(body.encode(), endpoint, trusted=trusted)


@settings(max_examples=200)
@given(BODIES, st.integers(0), st.sampled_from([b"", b"}", b",", b'"', b"\\", b"\x00", b"01", b"NaN"]))
def test_broken_bodies_are_refused_as_by_the_reference(body: str, at: int, put: bytes) -> None:
    """Text, that is: a body that is none is refused before it is read (``json_faults``)."""
    data = body.encode()
    at %= len(data) + 1
    same(data[:at] + put + data[at + (not put) :], Endpoint.CHAT, trusted=False)


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf{}", b" {} \n", b"{}x", b"{}{}", b"null", b'{"a":1,}', b'{"a":01}'])
def test_what_is_around_an_object_counts_as_by_the_reference(body: bytes) -> None:
    same(body, Endpoint.CHAT, trusted=False)


def test_a_name_that_occurs_often_counts_once_however_many_there_are() -> None:
    names = [f"n{number % 3000}" for number in range(40_000)]
    body = "{" + ",".join(f'"{name}":{number}' for number, name in enumerate(names)) + "}"
    same(body.encode(), Endpoint.CHAT, trusted=False)
