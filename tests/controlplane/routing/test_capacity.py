"""The blocks a new request may take, against an engine whose blocks are counted one by one."""

from __future__ import annotations

from cachefleet_native import pure
from hypothesis import given
from hypothesis import strategies as st

from tests.controlplane.frames import state
from tests.reference.capacity import Capacity, certainly_used


def room(percent: int = 10, *, sent: int = 0, ended: int = 0, claimed: int = 0, **told: int | None) -> Capacity:
    found = pure.room(state(**told), sent=sent, ended=ended, reserved=claimed, percent=percent)
    assert found is not None
    total, free, reserve, idle, used = found
    return Capacity(total, free, reserve, idle, used)


def test_an_engine_that_does_not_tell_its_blocks_has_no_known_room() -> None:
    assert pure.room(state(blocks_total=0), sent=0, ended=0, reserved=0, percent=5) is None


def test_the_reserve_is_rounded_up_and_the_null_block_is_nobodys() -> None:
    found = room(5, blocks_total=102, blocks_free=101)
    assert (found.total, found.reserve, found.free, found.used) == (101, 6, 95, 0)


def test_the_lower_of_what_is_reported_and_what_is_claimed_counts() -> None:
    assert room(blocks_total=101, blocks_free=60, sent=20).free == 40 - 10
    assert room(blocks_total=101, blocks_free=60, sent=20, claimed=75).free == 25 - 10
    assert room(blocks_total=101, blocks_free=60, sent=55).free == 0


def test_what_may_be_idle_is_what_is_free_unless_the_engine_tells() -> None:
    assert room(blocks_total=101, blocks_free=60, blocks_idle=None).idle == 60
    assert room(blocks_total=101, blocks_free=60, blocks_idle=7, ended=5).idle == 12


def test_what_nobody_used_cannot_be_shared() -> None:
    assert room(blocks_total=101, blocks_free=100, blocks_idle=0).shared(50) == 0
    assert room(blocks_total=101, blocks_free=40, blocks_idle=10).shared(50) == 40


@given(st.sets(st.integers(0, 19)), st.sets(st.integers(20, 39)), st.integers(0, 20), st.integers(0, 20))
def test_no_more_is_called_shared_than_is(used: set[int], also: set[int], held: int, others_idle: int) -> None:
    """The prompt's held blocks are 0 to ``held``; ``used`` and ``also`` are in use, the other ones are idle."""
    prompt = set(range(held))
    idle = len(prompt - used) + others_idle
    assert certainly_used(held, idle=idle, used=len(used | also)) <= len(prompt & used)
