"""The parts of a JSON body are counted before it is decoded."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_bounds import JsonBounds
from tests.reference.json_parts import first_excess

FEW = JsonBounds(containers=3, strings=3, items=3, depth=2)
PIECES = st.sampled_from(
    [
        b'"',
        b"\\",
        b'\\"',
        b"\\\\",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b":",
        b"1",
        b"text",
        b" ",
        b"\n",
        b"\xc3\xa4",
        b"[" * 40,
    ]
)
BOUNDS = st.builds(JsonBounds, *[st.integers(0, 6)] * 4)


@pytest.mark.parametrize(
    ("body", "crossed"),
    [
        (b"", None),
        (b'{"a": [1, 2, 3]}', None),
        (b"[[]], [], []", "containers"),
        (b"[[[1,1,1,1,1]]]", "depth"),
        (b'["a", "b", "c", "d"]', "strings"),
        (b"[1,2,3,4,5]", "items"),
        (b'["[[[[,,,,\\"[[[[", 1]', None),
        (b'"[[[[', None),
        (b'"\\', None),
        (b'"\\\\"[[[', "depth"),
        (b"[]][[[[[[", None),
    ],
)
def test_what_is_crossed_first(body: bytes, crossed: str | None) -> None:
    assert FEW.first_excess(body) == crossed


@given(st.lists(PIECES, max_size=60).map(b"".join), BOUNDS)
def test_what_is_counted_is_what_the_reference_counts(body: bytes, bounds: JsonBounds) -> None:
    assert bounds.first_excess(body) == first_excess(body, bounds)


values = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _counted(value: Any) -> tuple[int, int, int, int]:
    """Containers, strings, commas and depth of a decoded value."""
    if isinstance(value, str):
        return 0, 1, 0, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0, 0
    inner = [_counted(item) for item in (value.values() if isinstance(value, dict) else value)]
    names = len(value) if isinstance(value, dict) else 0
    containers, strings, items = (sum(each[at] for each in inner) for at in range(3))
    deepest = max((each[3] for each in inner), default=0)
    return containers + 1, strings + names, items + max(0, len(value) - 1), deepest + 1


@given(values, st.sampled_from([None, 1]))
def test_of_valid_json_it_counts_what_a_decoder_finds(value: Any, indent: int | None) -> None:
    body = json.dumps(value, indent=indent).encode()
    exact = JsonBounds(*_counted(value))
    assert exact.first_excess(body) is None
    for at, count in enumerate(astuple(exact)):
        if count:
            one_less = [*astuple(exact)]
            one_less[at] -= 1
            assert JsonBounds(*one_less).first_excess(body) is not None


def test_the_error_says_which_bound() -> None:
    with pytest.raises(ApiError, match="more than 65536 objects and lists") as refused:
        JsonBounds().check(b'{"messages":[' + b"{}," * 70_000)
    assert refused.value.status == 400


def test_a_prompt_of_two_million_ids_has_room() -> None:
    JsonBounds().check(b'{"prompt":[' + b"1," * 2_000_000 + b"1]}")
