"""Keys of the token ids in JSON bodies: what every keyer must do, against Python's own reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.native import PYTHON, Code
from cachefleet_core.request_bodies import BodyError
from tests.core.codes import over_both

TOKENS = st.lists(
    st.integers(0, 2**32 - 1) | st.integers(0, 200_000) | st.sampled_from([0, 9, 10, 99_999_999]), max_size=90
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


def keyer(code: Code) -> BlockKeyer:
    return code.keyer(b"k" * 32, Namespace("c"), 1)


def read(code: Code, body: bytes, field: str = "prompt") -> tuple[int, bytes]:
    return keyer(code).packed_json(body, field)


def packed(tokens: list[int]) -> bytes:
    return keyer(PYTHON).packed_keys(tokens)


@over_both
@given(TOKENS, st.dictionaries(st.text(), VALUES, max_size=3), SEPARATORS, st.data())
def test_ids_are_found_among_any_other_fields(
    code: Code, tokens: list[int], others: dict[str, Any], separators: tuple[str, str], data: st.DataObject
) -> None:
    fields = [*others.items(), ("prompt", tokens)]
    body = json.dumps(dict(data.draw(st.permutations(fields))), separators=separators).encode()

    assert read(code, body) == (len(tokens), packed(tokens))


LONG = f"[{'7,' * 40}%s,{'8,' * 40}9]"
OTHERS = ["-1", "1.0", "1.5", "1e3", "4294967296", "99999999999", '"1"', "[1]", "true", "null"]
BROKEN = ["", "x", "1 2", "01", "é", "1,", ",1", "1,,2"]


@over_both
@pytest.mark.parametrize(
    "array", ["{}", "1", '"1"', "null"] + [form % other for form in ("[%s]", LONG) for other in OTHERS]
)
def test_what_is_no_array_of_token_ids_is_refused(code: Code, array: str) -> None:
    with pytest.raises(BodyError, match="tokens: must be an array of integers from 0 to 4294967295"):
        read(code, f'{{"model":"m","prompt":{array}}}'.encode())


@over_both
@pytest.mark.parametrize("array", ["[1", "[", "[1]]"] + [LONG % broken for broken in BROKEN])
def test_an_array_that_is_no_json_is_refused(code: Code, array: str) -> None:
    with pytest.raises(BodyError, match=r"tokens|body"):
        read(code, f'{{"model":"m","prompt":{array}}}'.encode())


@over_both
@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":"\\', b'{"prompt":[1]', b"null"]
)
def test_what_is_no_object_is_refused(code: Code, body: bytes) -> None:
    with pytest.raises(BodyError, match="body"):
        read(code, body)


@over_both
def test_a_field_that_is_not_there_is_said_to_be_missing(code: Code) -> None:
    with pytest.raises(BodyError, match="no such field"):
        read(code, b'{"a": {"prompt": [1]}, "b": "prompt"}')
    assert read(code, b'{"prompt":[1],"prompt":[2,3]}')[0] == 2


@over_both
def test_nesting_without_end_is_refused(code: Code) -> None:
    with pytest.raises(BodyError, match="body"):
        read(code, b'{"a":' + b"[" * 1_000_000)


@over_both
@given(st.binary(max_size=200) | st.text('{}[]":,\\ 0123456789promtx', max_size=80).map(str.encode))
def test_any_bytes_are_read_or_refused(code: Code, body: bytes) -> None:
    try:
        count, _ = read(code, body)
    except BodyError:
        return
    assert count >= 0


@over_both
@given(TOKENS.filter(len), st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_never_makes_other_ids_than_python_reads(
    code: Code, tokens: list[int], place: int, value: int
) -> None:
    body = bytearray(json.dumps({"prompt": tokens}, separators=(",", ":")).encode())
    body[place % len(body)] = value
    try:
        ours = read(code, bytes(body))
    except BodyError:
        return
    theirs = json.loads(bytes(body))["prompt"]
    assert ours == (len(theirs), packed(theirs))
