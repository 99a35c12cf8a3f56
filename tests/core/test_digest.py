"""What every digest must do: the reference's, the native one, and that of the native index."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import Tier, pack_keys, unpack_keys
from cachefleet_core.digest import engine_number
from cachefleet_core.native import empty_digest
from tests.core import block_key_formula as formula
from tests.reference.digest import AnyDigest, Digest, Keys

VECTORS: Final[dict[str, Any]] = json.loads(formula.VECTORS.read_text(encoding="utf-8"))
KEYS = st.integers(1, 2**64 - 1) | st.integers(2**64 - 40, 2**64 - 1) | st.integers(1, 40)
TIERS = st.sampled_from(Tier)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "look", "clear"]), st.lists(KEYS, unique=True, max_size=40), TIERS),
    max_size=12,
)


class IndexDigest:
    """That which the native index keeps of one worker."""

    def __init__(self) -> None:
        self._index = import_module("cachefleet_native").Index()

    @property
    def value(self) -> int:
        digest: int = self._index.digest("w")
        return digest

    def add(self, keys: Keys, tier: Tier = Tier.DEVICE, /) -> None:
        for key in _each(keys):
            self._index.store("w", 0, pack_keys([key]), int(tier))

    def remove(self, keys: Keys, tier: Tier = Tier.DEVICE, /) -> None:
        for key in _each(keys):
            self._index.remove("w", pack_keys([key]), int(tier))

    def clear(self) -> None:
        self._index.clear("w")


Make = Callable[[], AnyDigest]
over_all: Final = pytest.mark.parametrize(
    "make",
    [
        pytest.param(Digest, id="reference"),
        pytest.param(empty_digest, id="native"),
        pytest.param(IndexDigest, id="native index"),
    ],
)


def _each(keys: Keys) -> Collection[int]:
    return unpack_keys(keys) if isinstance(keys, bytes) else keys


def expected(held: Collection[tuple[int, Tier]]) -> int:
    return formula.digest([(key, int(tier)) for key, tier in held])


@over_all
@pytest.mark.parametrize("vector", VECTORS["digests"], ids=lambda vector: vector["digest"])
def test_digests_reproduce_the_vectors(make: Make, vector: dict[str, Any]) -> None:
    digest = make()
    for key, tier in vector["held"]:
        digest.add((int(key, 16),), Tier(tier))

    assert f"{digest.value:016x}" == vector["digest"]


@over_all
@given(CHANGES)
def test_a_digest_is_that_of_the_set_after_any_history(make: Make, changes: list[tuple[str, list[int], Tier]]) -> None:
    digest, held = make(), set[tuple[int, Tier]]()
    for change, keys, tier in changes:
        there = [key for key in keys if (key, tier) in held]
        match change:
            case "add":
                digest.add([key for key in keys if key not in there], tier)
                held |= {(key, tier) for key in keys}
            case "remove":
                digest.remove(there, tier)
                held -= {(key, tier) for key in there}
            case "clear":
                digest.clear()
                held.clear()
            case _:
                assert digest.value == expected(held)

    assert digest.value == expected(held)


@over_all
@given(st.sets(st.tuples(KEYS, TIERS), max_size=30), st.randoms(use_true_random=False))
def test_a_digest_depends_on_the_set_alone(make: Make, held: set[tuple[int, Tier]], chance: random.Random) -> None:
    one, two = make(), make()
    for key, tier in held:
        one.add((key,), tier)
    shuffled = [*held, *((key ^ 1 or 7, tier) for key, tier in held)]
    shuffled = list(set(shuffled))
    chance.shuffle(shuffled)
    for key, tier in shuffled:
        two.add((key,), tier)
    for key, tier in set(shuffled) - held:
        two.remove((key,), tier)

    assert one.value == two.value == expected(held)


@over_all
def test_tiers_count_apart_and_clear_empties(make: Make) -> None:
    device, host = make(), make()
    device.add((5,))
    host.add((5,), Tier.HOST)
    assert device.value not in {host.value, 0}

    device.clear()
    assert device.value == 0
    device.add((5,))
    assert device.value == expected([(5, Tier.DEVICE)])


@over_all
@given(st.sets(KEYS, max_size=60), TIERS)
def test_many_at_once_count_as_each(make: Make, keys: set[int], tier: Tier) -> None:
    many = make()
    many.add(keys, tier)

    assert many.value == expected([(key, tier) for key in keys])


@over_all
@given(st.sets(KEYS, max_size=60), TIERS)
def test_packed_keys_count_as_each(make: Make, keys: set[int], tier: Tier) -> None:
    digest = make()
    digest.add(pack_keys(keys), tier)
    assert digest.value == expected([(key, tier) for key in keys])
    digest.remove(pack_keys(keys), tier)
    assert digest.value == 0


@over_all
def test_more_than_are_summed_together_count_as_each(make: Make) -> None:
    keys = random.Random(5).sample(range(1, 2**63), 5000)
    many = make()
    many.add(keys)
    assert many.value == expected([(key, Tier.DEVICE) for key in keys])

    for key in keys[:3000]:
        many.remove((key,))
    assert many.value == expected([(key, Tier.DEVICE) for key in keys[3000:]])
    many.remove(set(keys[3000:]))
    assert many.value == 0


def test_an_engines_hash_counts_by_its_last_64_bits() -> None:
    assert engine_number(5) == engine_number((1 << 64 | 5).to_bytes(32, "big")) == engine_number(b"\x05") == 5
