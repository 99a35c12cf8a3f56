"""The digest in bulk is the digest one by one."""

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.fingerprints import fingerprint
from cachefleet_core.blocks import Tier
from tests.controlplane.chains import chain, digest_of

keys = st.sets(st.integers(1, 2**64 - 1) | st.integers(2**64 - 40, 2**64 - 1) | st.integers(1, 40), max_size=60)


@given(keys, st.sampled_from(list(Tier)))
def test_equals_the_digest_of_each(some: set[int], tier: Tier) -> None:
    assert fingerprint(some, tier) == digest_of((key, tier) for key in some)


def test_equals_it_over_several_rounds() -> None:
    some = set(chain(5, 5000))
    assert fingerprint(some) == digest_of((key, Tier.DEVICE) for key in some)
