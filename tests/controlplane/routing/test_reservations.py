"""What requests under way will fill, against counting distinct blocks one by one."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.routing.reservations import Claim, Claims
from cachefleet_core.blocks import pack_keys
from tests.controlplane.chains import chain

TRUNK = chain(1, 30)
CHAINS = [TRUNK, [*TRUNK[:5], *chain(2, 9)], [*TRUNK[:12], *chain(3, 9)], [*TRUNK[:5], *chain(2, 9)[:4]], chain(4, 7)]


def packed(which: int, blocks: int) -> bytes:
    return pack_keys(CHAINS[which][:blocks])


@dataclass
class Asked:
    """A request and what is claimed for it."""

    keys: bytes
    blocks: int
    claim: Claim

    @property
    def common(self) -> set[bytes]:
        """Its blocks that others may share, by their keys."""
        chained = self.claim.chain
        return {chained[place : place + 8] for place in range(0, len(chained), 8)}


def test_equal_prompts_computed_at_once_have_nothing_in_common() -> None:
    claims = Claims()
    for _ in range(3):
        claims.take(packed(0, 10), blocks=12, held=0)
    assert claims.blocks == 36


def test_what_is_held_or_computed_is_counted_once() -> None:
    claims = Claims()
    first = claims.take(packed(0, 10), blocks=12, held=0)
    claims.computed(first, packed(0, 10))
    assert claims.blocks == 12
    second = claims.take(packed(0, 10), blocks=12, held=0)
    claims.take(packed(1, 10), blocks=11, held=5)
    assert claims.blocks == 12 + 2 + 6
    claims.drop(first)
    assert claims.blocks == 12 + 6  # the second has taken it over
    claims.drop(second)
    assert claims.blocks == 11


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "computed", "drop"]),
        st.integers(0, len(CHAINS) - 1),
        st.integers(0, 30),
        st.integers(0, 30),
        st.integers(0, 99),
    ),
    max_size=30,
)


@given(steps)
def test_any_history_counts_distinct_blocks(history: list[tuple[str, int, int, int, int]]) -> None:
    claims, asked = Claims(), list[Asked]()
    for what, which, blocks, more, number in history:
        before = claims.blocks
        if what == "take":
            keys = packed(which, blocks)
            needed = len(keys) // 8 + more % 5
            asked.append(Asked(keys, needed, claims.take(keys, blocks=needed, held=more)))
            assert before <= claims.blocks <= before + needed
        elif asked:
            one = asked[number % len(asked)]
            if what == "computed" and len(one.claim.chain) < len(one.keys):
                claims.computed(one.claim, one.keys)
                assert claims.blocks == before
            elif what == "drop":
                asked.remove(one)
                claims.drop(one.claim)
        common = {key for one in asked for key in one.common}
        assert claims.blocks == len(common) + sum(one.claim.alone for one in asked)
        assert all(0 <= one.claim.alone <= one.blocks for one in asked)
        assert all(one.common <= {one.keys[i : i + 8] for i in range(0, len(one.keys), 8)} for one in asked)
