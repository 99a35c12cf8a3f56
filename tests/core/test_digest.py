from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.blocks import Tier
from cachefleet_core.digest import Digest
from tests.core import block_key_formula as formula

VECTORS: dict[str, Any] = json.loads(formula.VECTORS.read_text(encoding="utf-8"))
KEYS = st.integers(1, 2**64 - 1) | st.integers(2**64 - 40, 2**64 - 1) | st.integers(1, 40)


@pytest.mark.parametrize("vector", VECTORS["digests"], ids=lambda vector: vector["digest"])
def test_digests_reproduce_the_vectors(vector: dict[str, Any]) -> None:
    digest = Digest()
    for key, tier in vector["held"]:
        digest.add((int(key, 16),), Tier(tier))

    assert f"{digest.value:016x}" == vector["digest"]


@given(st.sets(st.tuples(KEYS, st.sampled_from(Tier)), max_size=30), st.randoms(use_true_random=False))
def test_a_digest_depends_on_the_set_alone(held: set[tuple[int, Tier]], chance: random.Random) -> None:
    one, two = Digest(), Digest()
    for key, tier in held:
        one.add((key,), tier)
    shuffled = [*held, *((key ^ 1, tier) for key, tier in held if (key ^ 1, tier) not in held)]
    chance.shuffle(shuffled)
    for key, tier in shuffled:
        two.add((key,), tier)
    for key, tier in set(shuffled) - held:
        two.remove((key,), tier)

    assert one.value == two.value == formula.digest([(key, int(tier)) for key, tier in held])


def test_tiers_count_apart_and_clear_empties() -> None:
    device, host = Digest(), Digest()
    device.add((5,))
    host.add((5,), Tier.HOST)
    assert device.value not in {host.value, 0}

    device.clear()
    assert device.value == 0


@given(st.sets(KEYS, max_size=60), st.sampled_from(list(Tier)))
def test_many_at_once_count_as_each(keys: set[int], tier: Tier) -> None:
    many = Digest()
    many.add(keys, tier)

    assert many.value == formula.digest([(key, int(tier)) for key in keys])


def test_several_rounds_of_many_count_as_each() -> None:
    keys = set(random.Random(5).sample(range(1, 2**63), 5000))
    many = Digest()
    many.add(keys)
    assert many.value == formula.digest([(key, 0) for key in keys])

    many.remove(keys)
    assert many.value == 0
