from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_identity.media import MediaKeyer, Medium, Placed, media_of_blocks
from cachefleet_core.block_keys import MASK, NO_PARENT, BlockKeyer, Namespace, namespace_secrets, pack_keys
from cachefleet_core.native import Code
from tests.core.codes import over_both

INDEX_KEY = bytes(range(32))
SPACE = Namespace("sha256:c", "salt")
MEDIA = st.lists(st.tuples(st.sampled_from(["i", "j", "\u00fc"]), st.integers(-50, 50)), max_size=3)


def keyer(
    size: int = 2, code: type[BlockKeyer] = BlockKeyer, space: Namespace = SPACE, lookahead: int = 0
) -> MediaKeyer:
    return MediaKeyer(INDEX_KEY, space, code(INDEX_KEY, space, size, lookahead))


def term(position: int, medium: Medium) -> int:
    """The formula of block_identity/media.py, written a second time."""
    message = b"medium" + position.to_bytes(8, "little") + medium[1].to_bytes(8, "little", signed=True)
    key = pack_keys(namespace_secrets(INDEX_KEY, SPACE))
    digest = hashlib.blake2b(message + medium[0].encode(), digest_size=8, key=key)
    return int.from_bytes(digest.digest(), "little")


@over_both
@given(st.integers(1, 4), st.integers(0, 3), st.lists(MEDIA, max_size=6), st.data())
def test_keys_are_those_of_the_formula(
    code: Code, size: int, ahead: int, media: list[Any], data: st.DataObject
) -> None:
    least = size * len(media) + ahead
    tokens = data.draw(st.lists(st.integers(0, 9), min_size=least, max_size=least + size - 1))
    plain = BlockKeyer(INDEX_KEY, SPACE, size, ahead)
    expected, parent = [], namespace_secrets(INDEX_KEY, SPACE)[0]
    for at, here in enumerate(media):
        moved = (parent + sum(term(at, one) for one in here)) & MASK or 1
        [parent] = plain.keys(tokens[at * size : at * size + size + ahead], plain_key(moved), at)
        expected.append(parent)
    made = keyer(size, code.keyer, lookahead=ahead)
    assert made.keys(tokens, media) == expected
    if len(media) > 1:  # a chain continued from its first block
        assert made.keys(tokens[size:], media[1:], plain_key(expected[0]), 1) == expected[1:]


def plain_key(number: int) -> Any:
    return number


def test_without_media_keys_are_the_plain_ones() -> None:
    assert keyer().keys([1, 2, 3, 4], [(), ()]) == BlockKeyer(INDEX_KEY, SPACE, 2).keys([1, 2, 3, 4])
    assert keyer().keys([1], []) == []


def test_what_is_where_and_in_which_order_makes_another_prompt() -> None:
    tokens = [7] * 8
    prompts: list[list[list[Medium]]] = [
        [[("i", 0)], [], [("j", 0)], []],
        [[("j", 0)], [], [("i", 0)], []],
        [[("i", 1)], [], [("j", 0)], []],
        [[], [("i", 0)], [("j", 0)], []],
        [[("i", 0), ("j", 0)], [], [], []],
        [[("i", 0)], [], [], []],
        [[], [], [], []],
    ]
    assert len({keyer().keys(tokens, each)[-1] for each in prompts}) == len(prompts)


def test_salts_share_no_key() -> None:
    media: list[list[Medium]] = [[("i", 0)], []]
    other = keyer(space=Namespace("sha256:c", "other"))
    assert not set(keyer().keys([1, 2, 3, 4], media)) & set(other.keys([1, 2, 3, 4], media, NO_PARENT))


def test_media_are_named_in_each_block_that_has_tokens_of_them() -> None:
    placed = [Placed("i", 3, 6), Placed("j", 9, 1), Placed("k", 12, 4)]
    expected = [(("i", 3),), (("i", -1),), (("i", -5), ("j", 1)), (("k", 0),), ()]
    assert media_of_blocks(placed, block_size=4, blocks=5) == expected
    assert media_of_blocks([], block_size=4, blocks=2) == [(), ()]


def test_media_that_begin_in_the_tokens_after_a_block_are_the_blocks_too() -> None:
    placed = [Placed("i", 4, 2), Placed("j", 9, 3)]
    plain = [(), (("i", 0),), (("j", 1),), ()]
    assert media_of_blocks(placed, block_size=4, blocks=4) == plain
    one = [(("i", 4),), (("i", 0),), (("j", 1),), ()]
    assert media_of_blocks(placed, block_size=4, blocks=4, lookahead=1) == one
    two = [(("i", 4),), (("i", 0), ("j", 5)), (("j", 1),), ()]
    assert media_of_blocks(placed, block_size=4, blocks=4, lookahead=2) == two
