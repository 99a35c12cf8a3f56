"""Lone surrogates are found wherever they are, and nothing else is taken for one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_bounds import NO_TEXT, JsonBounds
from cachefleet_controlplane.wire.json_faults import check_text, unreadable
from tests.reference.json_parts import is_text

TEXTS = st.text(st.characters(categories=("L", "Nd", "So")) | st.sampled_from('\\u"d8\n😀'))
JSON = st.recursive(TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))


def fault(body: bytes) -> ApiError | None:
    if is_text(body):
        return None
    try:
        check_text(body)
    except ApiError as error:
        return error
    return None


@given(JSON, st.booleans())
def test_all_text_passes_however_it_is_escaped(value: object, escaped: bool) -> None:  # noqa: FBT001 - hypothesis's
    assert fault(json.dumps(value, ensure_ascii=escaped).encode()) is None


@given(JSON, st.integers(0xD800, 0xDFFF), TEXTS)
def test_a_lone_surrogate_is_found(value: object, unit: int, text: str) -> None:
    found = fault(json.dumps({"a": value, "b": [text, text + chr(unit) + "x"]}).encode())
    assert found is not None
    assert (found.status, found.param) == (400, "b")
    assert f"`b[1]` has \\u{unit:04x}, half" in found.message


@pytest.mark.parametrize(
    ("body", "at"),
    [
        (b'"\\ud83d\\ud83d\\ude00"', 1),
        (b'"\\ud83d\\u0041"', 1),
        (b'"\\\\ud83d\\ude00"', 8),
        (b'"\\\\\\uD83D"', 3),
        (b'{"\\udfff":1}', 2),
        (b'["\\ud800', 2),
    ],
)
def test_where_it_is(body: bytes, at: int) -> None:
    found = fault(body)
    assert found is not None
    assert f"at byte {at}:" in found.message


PIECES = st.sampled_from(
    [b"\\", b"u", b"\\ud83d", b"\\ude00", b"\\u0041", b"d83d", b"\xc3\xa4", b"\xed\xa0\x80", b'"', b"x"]
)
WIDE = JsonBounds()


@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_native_code_finds_the_same(body: bytes) -> None:
    found = WIDE.first_excess(body)
    assert found == (None if is_text(body) else NO_TEXT)
    if found:
        with pytest.raises(ApiError):
            check_text(body)


def test_bytes_that_are_no_utf_8_are_named() -> None:
    found = fault('{"a":"é'.encode() + b'\xff"}')
    assert found is not None
    assert found.message == "The body is not UTF-8: invalid start byte at byte 8 (0xff)."


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"é":"abc', "Unterminated string at byte 6 of 10; the body ends within it: it was cut"),
        ('{"é":', "Expecting value at byte 6 of 6; the body ends within it"),
        ('{"é":tru}', "Expecting value at byte 6 of 10."),
        ("", "The body is empty: it must be a JSON object."),
        (" \n", "The body is empty"),
        ('{"a":NaN}', "The body is not valid JSON: NaN is no number there."),
        ('{"a":[-Infinity]}', "-Infinity is no number there."),
        ("[" * 100_000, "The body is not valid JSON: "),
    ],
)
def test_what_is_no_json_is_told_with_its_place(body: str, words: str) -> None:
    told = unreadable(body.encode(), ValueError("the decoder's words"))
    assert (told.status, words in told.message) == (400, True), told.message
