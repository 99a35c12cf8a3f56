from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import pack_keys, pack_tokens
from cachefleet_core.prompt_keys import PromptKeys, PromptKeysError, decode, encode

U32 = st.integers(0, (1 << 32) - 1)


@st.composite
def prompts(draw: st.DrawFn, *, ids: bool) -> PromptKeys:
    tokens = draw(st.integers(1, 200))
    block_size = draw(st.integers(1, 64))
    keys = draw(st.lists(st.integers(1, (1 << 64) - 1), max_size=tokens // block_size))
    return PromptKeys(
        tokens=tokens,
        block_size=block_size,
        boundaries=tuple(sorted(draw(st.sets(st.integers(1, tokens), max_size=5)))),
        keys=pack_keys(keys),
        ids=pack_tokens(draw(st.lists(U32, min_size=tokens, max_size=tokens))) if ids else b"",
    )


@given(st.data(), st.booleans())
def test_what_is_written_is_read(data: st.DataObject, ids: bool) -> None:  # noqa: FBT001
    given_prompts = data.draw(st.lists(prompts(ids=ids), max_size=3))
    assert decode(encode(given_prompts, ids=ids)) == given_prompts


def test_the_layout_is_as_written_down() -> None:
    prompt = PromptKeys(5, 2, (1, 5), pack_keys((1, (1 << 64) - 1)), pack_tokens((9, 8, 7, 6, 5)))
    assert encode([prompt], ids=True).hex(" ", 4) == (
        "4346504b 01000100 01000000 "
        "05000000 02000000 02000000 02000000 05000000 "
        "01000000 05000000 01000000 00000000 ffffffff ffffffff "
        "09000000 08000000 07000000 06000000 05000000"
    )
    assert len(encode([prompt])) == len(encode([prompt], ids=True)) - 20


@given(st.binary(max_size=80))
def test_hostile_bytes_are_refused_or_sound(data: bytes) -> None:
    _read(data)


@given(st.data(), st.binary(min_size=1, max_size=4), st.integers(0, 10_000))
def test_damaged_documents_are_refused_or_sound(data: st.DataObject, damage: bytes, position: int) -> None:
    whole = encode(data.draw(st.lists(prompts(ids=True), min_size=1, max_size=2)), ids=True)
    at = position % len(whole)
    _read(whole[:at] + damage + whole[at + len(damage) :])


@given(st.data(), st.integers(0, 10_000))
def test_a_part_of_a_document_is_refused(data: st.DataObject, length: int) -> None:
    whole = encode(data.draw(st.lists(prompts(ids=True), min_size=1, max_size=2)), ids=True)
    with pytest.raises(PromptKeysError):
        decode(whole[: length % len(whole)])


def _read(data: bytes) -> None:
    try:
        found = decode(data)
    except PromptKeysError:
        return
    for prompt in found:
        assert len(prompt.keys) // 8 <= prompt.tokens // prompt.block_size
        assert prompt.ids == b"" or len(prompt.ids) == 4 * prompt.tokens
        assert list(prompt.boundaries) == sorted(set(prompt.boundaries))


def document(*numbers: int, flags: int = 0, count: int = 1, tail: bytes = b"") -> bytes:
    return struct.pack("<4sHHI", b"CFPK", 1, flags, count) + struct.pack(f"<{len(numbers)}I", *numbers) + tail


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are less than a header"),
        (b"XXXX" + document()[4:], "not a CFPK document of version 1"),
        (struct.pack("<4sHHI", b"CFPK", 2, 0, 0), "not a CFPK document of version 1"),
        (document(flags=2, count=0), "flags 0x2"),
        (document(count=1 << 31), "2147483648 prompts"),
        (document(10, 0, 0, 0, 0), "10 tokens in blocks of 0"),
        (document(10, 65_537, 0, 0, 0), "in blocks of 65537"),
        (document(1 << 31, 1, 0, 1 << 31, 0), "2147483648 tokens"),
        (document(10, 5, 0, 3, 0), "3 keys for 10 tokens"),
        (document(10, 5, 11, 0, 0), "11 boundaries"),
        (document(10, 5, 0, 0, 10, tail=bytes(40)), "10 token ids for 10 tokens"),
        (document(10, 5, 0, 0, 0, flags=1), "0 token ids for 10 tokens"),
        (document(10, 5, 2, 0, 0, 4, 4), "boundaries are not ascending"),
        (document(10, 5, 1, 0, 0, 0), "boundaries are not ascending"),
        (document(10, 5, 1, 0, 0, 11), "boundaries are not ascending"),
        (document(10, 5, 0, 1, 0, tail=bytes(8)), "0 is not a block key"),
        (document(10, 5, 0, 2, 0, tail=b"12345678" + bytes(8)), "0 is not a block key"),
        (document(10, 5, 0, 1, 0, tail=bytes(7)), "breaks off"),
        (document(10, 5, 0, 0, 0, tail=b"x"), "1 bytes after the last prompt"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, message: str) -> None:
    with pytest.raises(PromptKeysError, match=message):
        decode(data)


def test_numbers_that_do_not_fit_are_not_written() -> None:
    for boundary in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            encode([PromptKeys(1, 1, (boundary,))])


def test_zeros_that_two_keys_share_are_no_key() -> None:
    keys = b"\x01" + bytes(7) + bytes(7) + b"\x01"
    (prompt,) = decode(encode([PromptKeys(10, 5, keys=keys)]))
    assert prompt.keys == keys
