"""Keys of text: equal beginnings have equal keys, whatever follows, and nothing else has."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.know.text_keys import CHUNK_BYTES, KEY_BYTES, chunk_keys, visible
from cachefleet_controlplane.wire.json_members import parse_fields
from cachefleet_core.block_keys import BlockKeyer
from cachefleet_core.native import native_code

SECRET = b"s" * 32


KEYERS = (None, BlockKeyer, native_code().keyer)


def keys(
    text: bytes, model: str = "m", salt: str = "s", *, keyer: type[BlockKeyer] | None = None, secret: bytes = SECRET
) -> list[bytes]:
    packed = chunk_keys(text, secret=secret, model=model, salt=salt, keyer=keyer)
    return [packed[start : start + KEY_BYTES] for start in range(0, len(packed), KEY_BYTES)]


@pytest.mark.parametrize("keyer", KEYERS)
@given(st.binary(max_size=4 * CHUNK_BYTES), st.binary(max_size=CHUNK_BYTES), st.binary(max_size=CHUNK_BYTES))
def test_as_many_keys_are_shared_as_chunks(
    keyer: type[BlockKeyer] | None, shared: bytes, one: bytes, other: bytes
) -> None:
    first, second = keys(shared + one, keyer=keyer), keys(shared + other, keyer=keyer)
    alike = next(
        (n for n, (a, b) in enumerate(zip(shared + one, shared + other, strict=False)) if a != b),
        min(len(shared + one), len(shared + other)),
    )
    common = sum(a == b for a, b in zip(first, second, strict=False))
    assert common == alike // CHUNK_BYTES
    assert first[:common] == second[:common]


@pytest.mark.parametrize("keyer", KEYERS)
def test_tenants_and_models_and_processes_share_nothing(keyer: type[BlockKeyer] | None) -> None:
    text = bytes(2 * CHUNK_BYTES)
    assert not {*keys(text, "m", "a", keyer=keyer)} & {*keys(text, "m", "b", keyer=keyer)}
    assert not {*keys(text, "ab", "c", keyer=keyer)} & {*keys(text, "a", "bc", keyer=keyer)}
    assert not {*keys(text, keyer=keyer)} & {*keys(text, keyer=keyer, secret=b"t" * 32)}


def test_native_code_and_its_twin_call_chunks_alike() -> None:
    text = bytes(range(256)) * 9
    assert len({tuple(keys(text, keyer=keyer)) for keyer in KEYERS[1:]}) == 1
    assert len(keys(text, keyer=BlockKeyer)) == len(text) // CHUNK_BYTES


def test_a_later_turn_begins_like_the_one_before() -> None:
    def body(*messages: str, **fields: object) -> bytes:
        asked = {"messages": [{"role": "user", "content": text} for text in messages], "model": "tiny"}
        return visible(parse_fields(json.dumps(asked | fields).encode()))

    assert body("one", "two").startswith(body("one"))
    assert body("one", temperature=1) == body("one")
    assert not body("one", tools=[1]).startswith(body("one"))
    assert body("one", "two", tools=[1]).startswith(body("one", tools=[1]))
