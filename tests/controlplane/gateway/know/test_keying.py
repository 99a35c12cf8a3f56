"""Keys of a prompt out of the JSON of its ids: by native code or its twin, with the ids or without."""

from __future__ import annotations

from array import array

import pytest
from msgspec import Raw

from cachefleet_controlplane.gateway.know.rendering_result import Keying
from cachefleet_controlplane.gateway.request.rendered_prompt import Keyed
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.native import Code
from cachefleet_core.request_bodies import BodyError
from tests.core.codes import over_both

IDS = list(range(70))
ARRAY = Raw(str(IDS).encode())
TWIN = BlockKeyer(b"k" * 32, Namespace("c"), 16)
over_ids = pytest.mark.parametrize("keep_ids", [False, True], ids=["keys", "keys and ids"])


def keying(code: Code, max_tokens: int | None = None, *, keep_ids: bool) -> Keying:
    keyer = code.keyer(b"k" * 32, Namespace("c"), 16)
    return Keying(lambda: keyer, max_tokens, keep_ids)


def kept(count: int, *, keep_ids: bool) -> array[int] | None:
    return array("I", IDS[:count]) if keep_ids else None


@over_both
@over_ids
def test_keys_are_those_of_the_ids(code: Code, *, keep_ids: bool) -> None:
    read = keying(code, keep_ids=keep_ids).read
    assert read(ARRAY) == Keyed(70, TWIN.packed_keys(IDS), 16, ids=kept(70, keep_ids=keep_ids))
    assert read(Raw(b"[0]")) == Keyed(1, b"", 16, ids=kept(1, keep_ids=keep_ids))
    assert read(Raw(b"[]")) == Keyed()


@over_both
@over_ids
def test_prompts_that_no_worker_takes_are_counted_only(code: Code, *, keep_ids: bool) -> None:
    assert keying(code, 69, keep_ids=keep_ids).read(ARRAY) == Keyed(70)
    assert keying(code, 70, keep_ids=keep_ids).read(ARRAY).block_size == 16


@over_ids
def test_without_a_contract_prompts_are_counted_only(*, keep_ids: bool) -> None:
    keyed = Keying(lambda: None, keep_ids=keep_ids).read(ARRAY)
    assert keyed == Keyed(70, ids=kept(70, keep_ids=keep_ids))


@over_both
@over_ids
@pytest.mark.parametrize("array", [b"1", b'"1"', b"[-1]", b"[1.5]", b'["a"]', b"null"])
def test_what_is_no_list_of_ids_is_refused(code: Code, array: bytes, *, keep_ids: bool) -> None:
    with pytest.raises(BodyError):
        keying(code, keep_ids=keep_ids).read(Raw(array))


def test_token_ids_are_not_shown() -> None:
    assert "314159" not in repr(Keyed(1, b"k", 16, (1,), array("I", [314159])))
