"""What requests under way will fill, against counting distinct blocks one by one."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_native import pure, shared_blocks
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import pack_keys
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
    reservation: pure.BlockReservation

    @property
    def common(self) -> set[bytes]:
        """Its blocks that others may share, by their keys."""
        chained = self.reservation.chain
        return {chained[place : place + 8] for place in range(0, len(chained), 8)}


def test_equal_prompts_computed_at_once_have_nothing_in_common() -> None:
    reservations = pure.BlockReservations()
    for _ in range(3):
        reservations.take(packed(0, 10), blocks=12, held=0)
    assert reservations.blocks == 36


def test_what_is_held_or_computed_is_counted_once() -> None:
    reservations = pure.BlockReservations()
    first = reservations.take(packed(0, 10), blocks=12, held=0)
    reservations.computed(first, packed(0, 10))
    assert reservations.blocks == 12
    second = reservations.take(packed(0, 10), blocks=12, held=0)
    reservations.take(packed(1, 10), blocks=11, held=5)
    assert reservations.blocks == 12 + 2 + 6
    reservations.drop(first)
    assert reservations.blocks == 12 + 6  # the second has taken it over
    reservations.drop(second)
    assert reservations.blocks == 11


@given(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.tuples(st.integers(0, 31), st.integers(0, 31)), st.data())
def test_shared_blocks_are_the_longest_common_prefix(
    which: tuple[int, int], blocks: tuple[int, int], data: st.DataObject
) -> None:
    one, other = (CHAINS[number][:many] for number, many in zip(which, blocks, strict=True))
    shared = sum(1 for mine, theirs in zip(one, other, strict=False) if mine == theirs)
    known = data.draw(st.integers(0, shared))
    assert shared_blocks(pack_keys(one), pack_keys(other), at_least=known) == shared


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
    reservations, asked = pure.BlockReservations(), list[Asked]()
    for what, which, blocks, more, number in history:
        before = reservations.blocks
        if what == "take":
            keys = packed(which, blocks)
            needed = len(keys) // 8 + more % 5
            asked.append(Asked(keys, needed, reservations.take(keys, blocks=needed, held=more)))
            assert before <= reservations.blocks <= before + needed
        elif asked:
            one = asked[number % len(asked)]
            if what == "computed" and len(one.reservation.chain) < len(one.keys):
                reservations.computed(one.reservation, one.keys)
                assert reservations.blocks == before
            elif what == "drop":
                asked.remove(one)
                reservations.drop(one.reservation)
        common = {key for one in asked for key in one.common}
        assert reservations.blocks == len(common) + sum(one.reservation.alone for one in asked)
        assert all(0 <= one.reservation.alone <= one.blocks for one in asked)
        assert all(one.common <= {one.keys[i : i + 8] for i in range(0, len(one.keys), 8)} for one in asked)
