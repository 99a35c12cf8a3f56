"""Token ids out of JSON bodies, against Python's own reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.blocks import Namespace, pack_keys

pytest.importorskip("cachefleet_native")
from cachefleet_core.native_blocks import NativeBlockKeyer

KEYER = NativeBlockKeyer(b"k" * 32, Namespace("c"), 1)
TOKENS = st.lists(
    st.integers(0, 2**32 - 1) | st.integers(0, 200_000) | st.sampled_from([0, 9, 10, 99_999_999]), max_size=90
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


def read(body: bytes, field: str = "prompt") -> tuple[int, bytes]:
    return KEYER._native.json(body, field)


@given(TOKENS, st.dictionaries(st.text(), VALUES, max_size=3), SEPARATORS, st.data())
def test_ids_are_found_among_any_other_fields(
    tokens: list[int], others: dict[str, Any], separators: tuple[str, str], data: st.DataObject
) -> None:
    fields = [*others.items(), ("prompt", tokens)]
    body = json.dumps(dict(data.draw(st.permutations(fields))), separators=separators).encode()

    assert read(body) == (len(tokens), pack_keys(KEYER.keys(tokens)))


@pytest.mark.parametrize(
    "array",
    [
        "[1,]",
        "[,1]",
        "[1,,2]",
        "[01]",
        "[-1]",
        "[1.0]",
        "[1e3]",
        "[4294967296]",
        "[99999999999]",
        '["1"]',
        "[1 2]",
        "[[1]]",
        "[1",
        "{}",
    ]
    + [
        f"[{'7,' * 40}{bad},{'8,' * 40}9]"
        for bad in ("", "x", "1 2", "01", "1.5", "-3", "4294967296", "é", "123456789012")
    ],
)
def test_what_is_no_array_of_token_ids_is_refused(array: str) -> None:
    with pytest.raises(ValueError, match="tokens"):
        read(f'{{"model":"m","prompt":{array}}}'.encode())


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":"\\', b'{"prompt":[1]', b"null"]
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="body"):
        read(body)


def test_a_field_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(ValueError, match="no such field"):
        read(b'{"a": {"prompt": [1]}, "b": "prompt"}')
    assert read(b'{"prompt":[1],"prompt":[2,3]}')[0] == 2


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="body"):
        read(b'{"a":' + b"[" * 1_000_000)


@given(st.binary(max_size=200) | st.text('{}[]":,\\ 0123456789promtx', max_size=80).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        count, _ = read(body)
    except ValueError:
        return
    assert count >= 0


@given(TOKENS.filter(len), st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_never_makes_other_ids_than_python_reads(tokens: list[int], place: int, value: int) -> None:
    body = bytearray(json.dumps({"prompt": tokens}, separators=(",", ":")).encode())
    body[place % len(body)] = value
    try:
        ours = read(bytes(body))
    except ValueError:
        return
    theirs = json.loads(bytes(body))["prompt"]
    assert ours == (len(theirs), pack_keys(KEYER.keys(theirs)))
