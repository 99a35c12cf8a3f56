"""What every keyer must do, and that both give the same keys."""

from __future__ import annotations

import json
import random
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import MASK, NO_PARENT, BlockKey, BlockKeyer, Namespace, namespace_secrets, pack_keys
from cachefleet_core.native import Code
from tests.core import block_key_formula as formula
from tests.core.codes import over_both

INDEX_KEY: Final = b"k" * 32
VECTORS: Final[dict[str, Any]] = json.loads(formula.VECTORS.read_text(encoding="utf-8"))
SIZES = st.integers(1, 40) | st.just(16)
TOKEN = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 255, 256, 2**30 - 1, 2**30, 2**31, 2**32 - 1])
TOKENS = st.lists(TOKEN, max_size=80)
LOOKAHEADS = st.just(0) | st.integers(0, 6)
KEYS = st.integers(1, MASK) | st.sampled_from([1, 2**63, MASK])
FORMS: Final[dict[str, Callable[[list[int]], Sequence[int]]]] = {
    "list": list,
    "tuple": tuple,
    "u32 array": lambda tokens: array("I", tokens),
    "u32 buffer": lambda tokens: memoryview(struct.pack(f"={len(tokens)}I", *tokens)).cast("I"),
    "read-only part of a buffer": lambda tokens: memoryview(array("I", [9, *tokens, 9])).toreadonly()[1:-1],
    "u64 array": lambda tokens: array("Q", tokens),
}
"""Of token ids in memory."""


def keyer(code: Code, block_size: int = 16, **namespace: str) -> BlockKeyer:
    return code.keyer(INDEX_KEY, Namespace(**({"contract": "sha256:c"} | namespace)), block_size)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, list[int]]:
    """A block size, and tokens that often end at the border of a block or one beside it."""
    size = draw(SIZES)
    near = st.builds(lambda blocks, beside: max(0, blocks * size + beside), st.integers(0, 6), st.integers(-1, 1))
    length = draw(near | st.integers(0, 200))
    return size, draw(st.lists(TOKEN, min_size=length, max_size=length))


@over_both
@pytest.mark.parametrize(
    "chain",
    VECTORS["chains"],
    ids=lambda chain: "{namespace}-{prompt}-{block_size}+{lookahead}".format_map({"lookahead": 0} | chain),
)
def test_keys_reproduce_the_vectors(code: Code, chain: dict[str, Any]) -> None:
    namespace = Namespace(**VECTORS["namespaces"][chain["namespace"]])
    made = code.keyer(bytes.fromhex(VECTORS["index_key"]), namespace, chain["block_size"], chain.get("lookahead", 0))
    tokens = VECTORS["prompts"][chain["prompt"]]

    assert [f"{key:016x}" for key in made.keys(tokens)] == chain["keys"]
    assert made.packed_keys(tokens) == pack_keys(int(key, 16) for key in chain["keys"])


@over_both
@given(
    st.binary(min_size=1, max_size=64),
    st.fixed_dictionaries({"contract": st.text(), "salt": st.text(), "lora": st.text()}),
    prompts(),
    LOOKAHEADS,
)
def test_keys_agree_with_the_formula_everywhere(
    code: Code, index_key: bytes, namespace: dict[str, str], prompt: tuple[int, list[int]], lookahead: int
) -> None:
    size, tokens = prompt
    made = code.keyer(index_key, Namespace(**namespace), size, lookahead)

    assert made.keys(tokens) == formula.keys(index_key, namespace, size, tokens, lookahead)
    assert len(made.keys(tokens)) == made.blocks(len(tokens)) == max(0, len(tokens) - lookahead) // size


@over_both
@given(
    prompts(),
    LOOKAHEADS,
    st.sampled_from(sorted(FORMS)),
    st.tuples(st.just(NO_PARENT) | KEYS, st.integers(0, 2**40) | KEYS),
)
def test_keys_are_those_of_the_twin_in_every_form(
    code: Code, prompt: tuple[int, list[int]], lookahead: int, form: str, place: tuple[int, int]
) -> None:
    (size, tokens), (parent, position) = prompt, place
    namespace = Namespace("sha256:c", "salt", "lora")
    made, twin = code.keyer(INDEX_KEY, namespace, size, lookahead), BlockKeyer(INDEX_KEY, namespace, size, lookahead)
    expected = twin.keys(tokens, BlockKey(parent), position)

    assert made.keys(FORMS[form](tokens), BlockKey(parent), position) == expected
    assert made.packed_keys(FORMS[form](tokens), BlockKey(parent), position) == pack_keys(expected)


@given(prompts(), LOOKAHEADS)
def test_packed_ids_have_the_same_keys(prompt: tuple[int, list[int]], lookahead: int) -> None:
    size, tokens = prompt
    secrets = namespace_secrets(INDEX_KEY, Namespace("c"))
    made = import_module("cachefleet_native").Keyer(secrets, size, lookahead)

    expected = BlockKeyer(INDEX_KEY, Namespace("c"), size, lookahead).packed_keys(tokens)
    assert made.packed_ids(struct.pack(f"<{len(tokens)}I", *tokens)) == expected


@over_both
@given(prompts(), LOOKAHEADS, st.sampled_from([(",", ":"), (", ", ": ")]))
def test_ids_in_a_json_body_have_the_same_keys(
    code: Code, prompt: tuple[int, list[int]], lookahead: int, separators: tuple[str, str]
) -> None:
    size, tokens = prompt
    body = json.dumps({"model": "m", "ids": tokens, "n": 1}, separators=separators).encode()

    expected = BlockKeyer(INDEX_KEY, Namespace("sha256:c"), size, lookahead).packed_keys(tokens)
    made = code.keyer(INDEX_KEY, Namespace("sha256:c"), size, lookahead)
    assert made.packed_json(body, "ids") == (len(tokens), expected)


@over_both
@given(st.binary(max_size=80), st.booleans())
def test_bytes_are_so_many_small_token_ids(code: Code, tokens: bytes, changeable: bool) -> None:  # noqa: FBT001 (hypothesis)
    given_bytes = bytearray(tokens) if changeable else tokens
    assert keyer(code, 3).keys(given_bytes) == keyer(code, 3).keys(list(tokens))


@over_both
@given(TOKENS, st.integers(1, 20), LOOKAHEADS, st.data())
def test_a_chain_may_be_continued_from_any_of_its_keys(
    code: Code, tokens: list[int], size: int, lookahead: int, data: st.DataObject
) -> None:
    made = code.keyer(INDEX_KEY, Namespace("sha256:c"), size, lookahead)
    whole = made.keys(tokens)
    cut = data.draw(st.integers(0, len(whole)))

    head = made.keys(tokens[: cut * size + lookahead])
    rest = made.keys(tokens[cut * size :], head[-1] if head else NO_PARENT, cut)

    assert head + rest == whole


@over_both
@given(TOKENS, st.integers(1, 20))
def test_only_full_blocks_have_keys(code: Code, tokens: list[int], size: int) -> None:
    made = keyer(code, size).keys(tokens)

    assert len(made) == len(tokens) // size
    assert made == keyer(code, size).keys(tokens[: len(made) * size])
    assert NO_PARENT not in made


@over_both
@given(st.lists(st.integers(0, 2**32 - 1), min_size=32, max_size=32), st.integers(0, 31))
def test_a_key_commits_to_every_token_before_it(code: Code, tokens: list[int], position: int) -> None:
    other = list(tokens)
    other[position] ^= 1

    before, after = keyer(code, 4).keys(tokens), keyer(code, 4).keys(other)

    assert before[: position // 4] == after[: position // 4]
    assert not set(before[position // 4 :]) & set(after[position // 4 :])


@over_both
@given(st.lists(st.integers(0, 2**32 - 1), min_size=34, max_size=34), st.integers(0, 33), st.sampled_from([1, 2]))
def test_a_key_commits_to_the_tokens_that_it_looks_ahead_to(
    code: Code, tokens: list[int], position: int, lookahead: int
) -> None:
    other = list(tokens)
    other[position] ^= 1
    made = code.keyer(INDEX_KEY, Namespace("sha256:c"), 4, lookahead)
    same = max(0, position - lookahead) // 4  # floor((equal tokens - L) / B)

    before, after = made.keys(tokens), made.keys(other)

    assert before[:same] == after[:same]
    assert not set(before[same:]) & set(after[same:])


@over_both
@pytest.mark.parametrize("lookahead", [-1, 1025])
def test_a_lookahead_out_of_range_is_refused(code: Code, lookahead: int) -> None:
    with pytest.raises(ValueError, match="lookahead must be from 0 to 1024"):
        code.keyer(INDEX_KEY, Namespace("c"), 16, lookahead)


@over_both
def test_equal_blocks_at_other_positions_have_other_keys(code: Code) -> None:
    assert len(set(keyer(code, 4).keys([7] * 400))) == 100


@over_both
def test_keys_of_namespaces_are_unrelated(code: Code) -> None:
    tokens = [random.Random(1).randrange(2**17) for _ in range(16 * 64)]
    made = [
        keyer(code),
        keyer(code, salt="a"),
        keyer(code, salt="b"),
        keyer(code, lora="a"),
        keyer(code, contract="sha256:d"),
        keyer(code, contract="sha256:ca", salt=""),
        code.keyer(b"j" * 32, Namespace("sha256:c"), 16),
    ]
    chains = [one.keys(tokens) for one in made]
    keys = [key for chain in chains for key in chain]
    steps = {b - a for chain in chains for a, b in pairwise(chain)}

    assert len(set(keys)) == len(keys)
    assert len(steps) == len(chains) * 63, "differences of neighbours must not repeat across namespaces either"


@over_both
def test_fields_of_a_namespace_do_not_run_into_each_other(code: Code) -> None:
    one = code.keyer(INDEX_KEY, Namespace("c", "ab", "c"), 1).keys([1])
    two = code.keyer(INDEX_KEY, Namespace("c", "a", "bc"), 1).keys([1])

    assert one != two


@over_both
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 17])
def test_the_last_token_of_a_padded_block_counts(code: Code, size: int) -> None:
    head = [9] * (size - 1)

    assert len({keyer(code, size).keys([*head, last])[0] for last in (0, 1, 2**31, 2**32 - 1)}) == 4


@over_both
@pytest.mark.parametrize("bad", [-1, 2**32, 2**64, 2**90, 1.0, 1.5, "1", b"1", None, [1]])
@pytest.mark.parametrize("place", [0, 7, 15])
def test_what_is_no_token_id_is_refused(code: Code, bad: Any, place: int) -> None:
    tokens: list[Any] = [5] * 20
    tokens[place] = bad
    for form in (tokens, tuple(tokens)):
        for method in (keyer(code).keys, keyer(code).packed_keys):
            with pytest.raises(ValueError, match="token ids must be integers from 0 to 4294967295") as raised:
                method(form)
            assert type(raised.value) is ValueError


@over_both
def test_wide_numbers_in_an_array_are_refused(code: Code) -> None:
    for wide in (array("Q", [1 << 32]), array("q", [-1]), array("d", [1.0])):
        with pytest.raises(ValueError, match="token ids must be integers from 0 to 4294967295"):
            keyer(code, 1).keys(wide)  # type: ignore[arg-type] # the point of it


@over_both
def test_what_is_not_in_a_full_block_is_not_looked_at(code: Code) -> None:
    tokens: list[Any] = [5] * 16 + ["x"]
    assert keyer(code).keys(tokens) == keyer(code).keys([5] * 16)


@over_both
@pytest.mark.parametrize("size", [0, -1, (1 << 20) + 1, 1 << 40, 1 << 70])
def test_block_sizes_out_of_range_are_refused(code: Code, size: int) -> None:
    with pytest.raises(ValueError, match=f"block size must be from 1 to 1048576, got {size}"):
        keyer(code, size)


@over_both
def test_a_key_is_never_the_sign_for_no_parent(code: Code) -> None:
    made = keyer(code, 1)
    step = made.keys([7], BlockKey(1))[0] - 1
    parent = BlockKey(-step & MASK)  # after which the next key would be 0

    assert made.keys([7], parent)[0] == 1
    assert made.keys([7, 8], parent)[1] == made.keys([8], BlockKey(1), 1)[0], "and the chain goes on from there"


def test_native_code_refuses_block_sizes_by_itself() -> None:
    with pytest.raises(ValueError, match="block size must be from 1 to 1048576, got 1099511627776"):
        import_module("cachefleet_native").Keyer([1, 2, 3, 4], 2**40)


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="a layout not known yet")
def test_ints_are_read_where_they_lie() -> None:
    assert import_module("cachefleet_native").INTS_READ_DIRECTLY
