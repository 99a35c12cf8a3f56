"""Keys of a prompt out of the JSON of its ids: with native code or its twin, remembered or not, they are the same."""

from __future__ import annotations

from array import array

import pytest
from msgspec import Raw

from cachefleet_controlplane.gateway.rendering.key_cache import KeyCache
from cachefleet_controlplane.gateway.rendering.keying import Keyed, Keying
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.native import Code
from cachefleet_core.request_bodies import BodyError
from tests.core.codes import over_both

IDS = list(range(70))
ARRAY = Raw(str(IDS).encode())
TWIN = BlockKeyer(b"k" * 32, Namespace("c"), 16)
over_caches = pytest.mark.parametrize("cache", [None, KeyCache()], ids=["computed", "remembered"])


def keying(code: Code, cache: KeyCache | None, max_tokens: int | None = None) -> Keying:
    keyer = code.keyer(b"k" * 32, Namespace("c"), 16)
    return Keying(lambda: keyer, max_tokens, cache)


@over_both
@over_caches
def test_keys_are_those_of_the_ids(code: Code, cache: KeyCache | None) -> None:
    assert keying(code, cache).read(ARRAY) == Keyed(70, TWIN.packed_keys(IDS), 16)
    assert keying(code, cache).read(Raw(b"[1]")) == Keyed(1, b"", 16)
    assert keying(code, cache).read(Raw(b"[]")) == Keyed()


@over_both
@over_caches
def test_prompts_that_no_worker_takes_are_counted_only(code: Code, cache: KeyCache | None) -> None:
    assert keying(code, cache, 69).read(ARRAY) == Keyed(70)
    assert keying(code, cache, 70).read(ARRAY).block_size == 16


@over_caches
def test_without_a_contract_prompts_are_counted_only(cache: KeyCache | None) -> None:
    assert Keying(lambda: None, cache=cache).read(ARRAY) == Keyed(70)


@over_both
@over_caches
@pytest.mark.parametrize("array", [b"1", b'"1"', b"[-1]", b"[1.5]", b'["a"]', b"null"])
def test_what_is_no_list_of_ids_is_refused(code: Code, cache: KeyCache | None, array: bytes) -> None:
    with pytest.raises(BodyError):
        keying(code, cache).read(Raw(array))


def test_token_ids_are_not_shown() -> None:
    assert "314159" not in repr(Keyed(1, b"k", 16, (1,), array("I", [314159])))
