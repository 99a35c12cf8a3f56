"""Remembered renderings: equal prompts are found, different ones never, and memory is bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.know.render_cache import RenderCache, digest
from cachefleet_controlplane.gateway.request.rendered_prompt import Keyed
from cachefleet_controlplane.wire.json_members import parse_fields

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "cache_salt": "s"}


def of(path: str = PATH, renderer: str = "", /, **fields: Any) -> bytes:
    return digest(path, parse_fields(json.dumps(BODY | fields).encode()), renderer=renderer)


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.5}, {"max_tokens": 7, "stream": True}, {"n": 3, "stop": ["a"], "seed": 4}]
)
def test_how_to_sample_shapes_no_prompt(fields: dict[str, Any]) -> None:
    assert of(**fields) == of()


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "hello "}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"cache_salt": "t"},
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"a": 1}},
        {"what_comes_later": 1},
    ],
)
def test_what_may_shape_a_prompt_tells_it_apart(fields: dict[str, Any]) -> None:
    assert of(**fields) != of()


def test_where_a_prompt_is_cut_the_answers_length_shapes_it() -> None:
    assert of(truncation="auto", max_tokens=7) != of(truncation="auto", max_tokens=8)
    assert of(truncation=None, max_tokens=7) == of(truncation=None, max_tokens=8)


def test_boundaries_take_room() -> None:
    cache = RenderCache()
    cache.put(b"a", Keyed(160, bytes(80), 16))
    plain = cache.bytes
    cache.put(b"a", Keyed(160, bytes(80), 16, (5, 9)))
    assert cache.bytes > plain


def test_so_do_path_and_renderer() -> None:
    assert len({of(), of("/v1/completions"), of(PATH, "other")}) == 3


def test_members_and_values_do_not_run_into_each_other() -> None:
    def made(**fields: str) -> bytes:
        return digest(PATH, parse_fields(json.dumps(fields).encode()), renderer="")

    assert made(a="b", c="d") != made(a='b"c"d')
    assert digest("ab", {}, renderer="c") != digest("a", {}, renderer="bc")


def test_the_least_recently_used_go_first() -> None:
    prompt = Keyed(160, bytes(80), 16)
    cache = RenderCache(limit=3 * (300 + 80))
    for name in (b"a", b"b", b"c"):
        cache.put(name, prompt)
    assert cache.get(b"a") == prompt
    cache.put(b"d", prompt)
    cache.put(b"d", prompt)
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert cache.bytes == 3 * (300 + 80)


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    cache = RenderCache(limit=350)
    cache.put(b"a", Keyed(160, bytes(80), 16))
    assert (cache.get(b"a"), cache.bytes) == (None, 0)
