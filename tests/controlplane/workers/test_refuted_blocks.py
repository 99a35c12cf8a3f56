"""What engines say against the index, and what decisions make of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.workers.refuted_blocks import MAX_REFUTED, SECONDS, RefutedBlocks
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.fleet.test_fleet import KEYS, prompt, route
from tests.controlplane.fleets import LiveFleet, fleet_of, wid

A, B = wid("demo-0"), wid("demo-1")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def refuted_blocks() -> RefutedBlocks:
    return RefutedBlocks(Clock())


def packed(*keys: int) -> bytes:
    return pack_keys(keys)


def test_nothing_is_doubted_at_first(refuted_blocks: RefutedBlocks) -> None:
    assert refuted_blocks.bounds(packed(1, 2, 3)) == {}


def test_a_block_that_is_lacking_bounds_every_prompt_that_has_it(refuted_blocks: RefutedBlocks) -> None:
    refuted_blocks.add(A, packed(1, 2, 3), lacking=2, held=2)
    assert refuted_blocks.bounds(packed(1, 2, 3)) == {A: 2}
    assert refuted_blocks.bounds(packed(1, 2, 3, 4)) == {A: 2}
    assert refuted_blocks.bounds(packed(1, 2)) == {}
    assert refuted_blocks.bounds(packed(1, 2, 9)) == {}


def test_less_may_be_believed_than_what_is_certainly_lacking(refuted_blocks: RefutedBlocks) -> None:
    refuted_blocks.add(A, packed(1, 2, 3), lacking=2, held=0)
    assert refuted_blocks.bounds(packed(1, 2, 3)) == {A: 0}
    assert refuted_blocks.bounds(packed(1, 2)) == {}


def test_no_more_is_believed_than_what_is_not_lacking(refuted_blocks: RefutedBlocks) -> None:
    refuted_blocks.add(A, packed(1, 2, 3), lacking=1, held=9)
    assert refuted_blocks.bounds(packed(1, 2, 3)) == {A: 1}


def test_a_prompt_without_that_block_says_nothing(refuted_blocks: RefutedBlocks) -> None:
    refuted_blocks.add(A, packed(1, 2), lacking=2, held=0)
    assert len(refuted_blocks) == 0


def test_what_was_refuted_ends_with_time_or_where_the_prompt_was_computed() -> None:
    clock = Clock()
    refuted_blocks = RefutedBlocks(clock)
    for worker in (A, B):
        refuted_blocks.add(worker, packed(1, 2), lacking=1, held=0)
    refuted_blocks.settle(A, packed(1, 2, 3))
    assert refuted_blocks.bounds(packed(1, 2)) == {B: 0}
    clock.now = SECONDS
    assert refuted_blocks.bounds(packed(1, 2)) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B]),
            st.lists(st.integers(0, 3), min_size=1, max_size=6),
            st.integers(0, 6),
            st.integers(0, 6),
            st.floats(0, SECONDS / 2),
        ),
        max_size=30,
    ),
    st.lists(st.integers(0, 3), max_size=6),
)
def test_a_bound_is_the_least_of_those_doubts_that_concern_the_prompt(
    said: list[tuple[str, list[int], int, int, float]], asked: list[int]
) -> None:
    clock = Clock()
    refuted_blocks = RefutedBlocks(clock)
    live: dict[tuple[str, int, int], tuple[int, float]] = {}
    for worker, keys, lacking, held, later in said:
        clock.now += later
        refuted_blocks.add(worker, packed(*keys), lacking=lacking, held=held)  # type: ignore[arg-type]
        if lacking < len(keys):
            live[worker, lacking, keys[lacking]] = (min(held, lacking), clock.now)
    expected: dict[str, int] = {}
    for (worker, lacking, key), (held, since) in live.items():
        if clock.now < since + SECONDS and lacking < len(asked) and asked[lacking] == key:
            expected[worker] = min(held, expected.get(worker, held))
    assert refuted_blocks.bounds(packed(*asked)) == expected


def test_they_are_bounded(refuted_blocks: RefutedBlocks) -> None:
    for key in range(MAX_REFUTED + 10):
        refuted_blocks.add(A, packed(key), lacking=0, held=0)
    assert len(refuted_blocks) == MAX_REFUTED
    assert refuted_blocks.bounds(packed(0)) == {}
    assert refuted_blocks.bounds(packed(MAX_REFUTED + 9)) == {A: 0}


def test_a_refuted_worker_is_chosen_by_what_it_may_still_hold_and_no_digest_is_touched() -> None:
    fleet: LiveFleet = fleet_of("demo-0", "demo-1")
    fleet.report("demo-0", KEYS)
    fleet.report("demo-1", KEYS[:2])
    before = fleet.index.digest(A)
    assert route(fleet).worker == "demo-0"
    keys = prompt().keys
    fleet.refuted_blocks.add(A, keys, lacking=1, held=1)
    decision = route(fleet)
    assert (decision.worker, decision.predicted_tokens) == ("demo-1", 32)
    assert fleet.index.digest(A) == before
    fleet.now += SECONDS
    for name, held in (("demo-0", KEYS), ("demo-1", KEYS[:2])):
        fleet.report(name, held)
    assert route(fleet).worker == "demo-0"
