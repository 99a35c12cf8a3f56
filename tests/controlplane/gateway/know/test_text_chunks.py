"""Keys of text: equal beginnings have equal keys, whatever follows, and nothing else has."""

from __future__ import annotations

import json
from array import array

from cachefleet_native import Ask
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from cachefleet_controlplane.gateway.know.text_keys import CHUNK_BYTES, KEY_BYTES, MAX_TEXT_BYTES, text_keyer
from cachefleet_controlplane.wire.json_members import parse_fields
from cachefleet_core.block_keys import BlockKeyer, Namespace

SECRET = b"s" * 32


def keys(text: bytes, model: str = "m", salt: str = "s", *, secret: bytes = SECRET) -> list[bytes]:
    size, packed = Ask({"prompt": Raw(text)}).text_keys(text_keyer(secret, model, salt), MAX_TEXT_BYTES)
    assert size == len(text.removesuffix(b"]"))
    return [packed[start : start + KEY_BYTES] for start in range(0, len(packed), KEY_BYTES)]


@given(st.binary(max_size=4 * CHUNK_BYTES), st.binary(max_size=CHUNK_BYTES), st.binary(max_size=CHUNK_BYTES))
def test_as_many_keys_are_shared_as_chunks(shared: bytes, one: bytes, other: bytes) -> None:
    one, other = one + b".", other + b"."
    first, second = keys(shared + one), keys(shared + other)
    alike = next(
        (n for n, (a, b) in enumerate(zip(shared + one, shared + other, strict=False)) if a != b),
        min(len(shared + one), len(shared + other)),
    )
    common = sum(a == b for a, b in zip(first, second, strict=False))
    assert common == alike // CHUNK_BYTES
    assert first[:common] == second[:common]


def test_tenants_and_models_and_processes_share_nothing() -> None:
    text = bytes(2 * CHUNK_BYTES)
    assert not {*keys(text, "m", "a")} & {*keys(text, "m", "b")}
    assert not {*keys(text, "ab", "c")} & {*keys(text, "a", "bc")}
    assert not {*keys(text)} & {*keys(text, secret=b"t" * 32)}


def test_native_code_and_its_twin_call_chunks_alike() -> None:
    text = bytes(range(256)) * 9
    words = array("I", text[: len(text) // CHUNK_BYTES * CHUNK_BYTES])
    twin = BlockKeyer(SECRET, Namespace("m", "s"), CHUNK_BYTES // words.itemsize)
    assert b"".join(keys(text)) == twin.packed_keys(words)
    assert len(keys(text)) == len(text) // CHUNK_BYTES


def test_a_later_turn_begins_like_the_one_before() -> None:
    def body(*messages: str, **fields: object) -> bytes:
        asked = {"messages": [{"role": "user", "content": text} for text in messages], "model": "tiny"}
        return Ask(parse_fields(json.dumps(asked | fields).encode())).visible()

    assert body("one", "two").startswith(body("one"))
    assert body("one", temperature=1) == body("one")
    assert not body("one", tools=[1]).startswith(body("one"))
    assert body("one", "two", tools=[1]).startswith(body("one", tools=[1]))
