"""The native digest against the reference."""

from __future__ import annotations

import random

import cachefleet_native
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import Tier, pack_keys
from tests.reference.digest import Digest

KEYS = st.lists(st.integers(1, 2**64 - 1), unique=True, max_size=60)


@given(KEYS, st.sampled_from(Tier), st.randoms(use_true_random=False))
def test_it_is_that_of_the_reference(keys: list[int], tier: Tier, chance: random.Random) -> None:
    native, reference = cachefleet_native.Digest(), Digest()
    gone = keys[: chance.randrange(len(keys) + 1)]
    for digest in (native, reference):
        digest.add(keys, tier)
        digest.remove(gone, tier)
    assert native.value == reference.value


@given(KEYS)
def test_packed_keys_and_any_collection_are_the_same(keys: list[int]) -> None:
    forms = [keys, pack_keys(keys), tuple(keys), set(keys), iter(keys)]
    digests = [cachefleet_native.Digest() for _ in forms]
    for digest, form in zip(digests, forms, strict=True):
        digest.add(form)  # type: ignore[arg-type]
    assert len({digest.value for digest in digests}) == 1


def test_cleared_it_is_as_new() -> None:
    digest = cachefleet_native.Digest()
    digest.add([1, 2], Tier.HOST)
    assert digest.value != 0
    digest.clear()
    assert digest.value == 0


@pytest.mark.parametrize("keys", [[-1], [1, 2**64], [1, "2"], b"1234567", [1.0]])
def test_what_is_no_key_changes_nothing(keys: list[int]) -> None:
    digest = cachefleet_native.Digest()
    with pytest.raises((ValueError, OverflowError, TypeError)):
        digest.add(keys)
    assert digest.value == 0


def test_a_tier_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="tier"):
        cachefleet_native.Digest().add([1], 2)
