"""What the block index does, and that any history of operations gives what plain sets give."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cachefleet_controlplane.index.block_index import BlockIndex, IndexFullError, OperationError
from cachefleet_controlplane.index.worker_id import WorkerId, worker_id
from cachefleet_core.block_keys import BlockKey, Tier, pack_keys
from cachefleet_core.report_frames import Cleared, Operation, Removed, Stored
from tests.controlplane.chains import chain, digest_of, removed, stored

A, B, C, NOBODY = (worker_id("default/demo", name) for name in "abcx")
KEYS = chain(1, 10)


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex()


class TestMatch:
    def test_counts_consecutive_blocks_of_each_candidate_in_the_order_asked(self, index: BlockIndex) -> None:
        for worker, held in ((A, 2), (B, 5), (C, 8)):
            index.apply(worker, stored(KEYS[:held]))

        assert index.match(KEYS, [C, A, B]) == [8, 2, 5]

    def test_sees_only_the_candidates(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        index.apply(B, stored(KEYS[:3]))

        assert index.match(KEYS, [B]) == [3]

    def test_a_hole_ends_the_prefix_exactly_there_and_heals(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        index.apply(A, removed([KEYS[4]]))
        assert index.match(KEYS, [A]) == [4]

        index.apply(A, stored([KEYS[4]], parent=KEYS[3]))
        assert index.match(KEYS, [A]) == [10]

    def test_blocks_whose_parent_is_not_held_count_once_it_is(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS[5:], parent=KEYS[4]))
        assert index.match(KEYS, [A]) == [0]

        index.apply(A, stored(KEYS[:5]))
        assert index.match(KEYS, [A]) == [10]

    def test_is_capped_by_limit(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        assert [index.match(KEYS, [A], limit=limit) for limit in (0, 3, 99, None)] == [[0], [3], [10], [10]]

    def test_keys_may_be_packed(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS[:7]))
        packed = pack_keys(KEYS)
        assert [index.match(packed, [A], limit=limit) for limit in (None, 0, 3, -5)] == [[7], [0], [3], [5]]

    def test_tiers_are_apart(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS[:4]))
        index.apply(A, stored(KEYS, tier=Tier.HOST))
        index.apply(A, removed(KEYS[:1]))

        assert index.match(KEYS, [A]) == [0]
        assert index.match(KEYS, [A], tier=Tier.HOST) == [10]

    def test_unknown_workers_and_no_keys_match_nothing(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        assert index.match(KEYS, [NOBODY, A]) == [0, 10]
        assert index.match([], [A, NOBODY]) == index.match(b"", [A, NOBODY]) == [0, 0]
        assert index.match(KEYS, []) == []

    def test_chains_that_part_share_what_is_before(self, index: BlockIndex) -> None:
        other = [*KEYS[:6], *chain(2, 4)]
        index.apply(A, stored(KEYS))
        index.apply(B, stored(other))
        assert index.match(other, [A, B]) == [6, 10]


class TestSets:
    def test_duplicates_change_nothing(self, index: BlockIndex) -> None:
        for _ in range(3):
            index.apply(A, stored(KEYS))
        once = index.digest(A)
        index.apply(A, removed(KEYS[8:]))
        index.apply(A, removed(KEYS[8:]))

        assert once == digest_of((key, Tier.DEVICE) for key in KEYS)
        assert index.digest(A) == digest_of((key, Tier.DEVICE) for key in KEYS[:8])
        assert (index.stats().held[A], index.held(A), index.held(B)) == (8, 8, 0)

    def test_blocks_below_the_device_are_counted_apart(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        index.apply(A, stored(KEYS[:6], tier=Tier.HOST))
        index.apply(A, stored(KEYS[:6], tier=Tier.HOST))
        index.apply(A, removed(KEYS[:2], tier=Tier.HOST))
        index.apply(A, removed(KEYS[:5]))
        assert (index.held(A), index.held_below(A), index.held_below(B)) == (9, 4, 0)
        index.forget(A)
        index.apply(A, stored(KEYS[:3]))
        assert (index.held(A), index.held_below(A)) == (3, 0)

    def test_a_key_may_be_removed_twice_in_one_operation(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        index.apply(A, removed([KEYS[9], KEYS[9]]))
        assert index.digest(A) == digest_of((key, Tier.DEVICE) for key in KEYS[:9])

    def test_removing_what_is_not_held_changes_nothing(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        index.apply(B, removed(KEYS))
        index.apply(A, removed(chain(3, 4)))
        assert index.match(KEYS, [A, B]) == [10, 0]

    def test_the_digest_does_not_depend_on_order_or_history(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        index.apply(A, removed(KEYS[5:]))
        for key in reversed(KEYS[:5]):
            index.apply(B, stored([key], parent=77))
        assert index.digest(A) == index.digest(B) != 0

    @pytest.mark.parametrize("count", [1, 15, 16, 17, 1023, 1024, 1025, 3000])
    def test_the_digest_is_the_agents_own_at_every_size(self, index: BlockIndex, count: int) -> None:
        keys = chain(7, count)
        index.apply(A, stored(keys))
        index.apply(A, stored(keys, tier=Tier.HOST))
        assert index.digest(A) == digest_of((key, tier) for key in keys for tier in Tier)

        index.apply(A, removed(keys))
        assert index.digest(A) == digest_of((key, Tier.HOST) for key in keys)

    def test_extreme_keys(self, index: BlockIndex) -> None:
        keys = [BlockKey(1), BlockKey(2**64 - 1), BlockKey(2**63)]
        index.apply(A, stored(keys))
        assert index.match(keys, [A]) == [3]
        assert index.digest(A) == digest_of((key, Tier.DEVICE) for key in keys)


class TestForgetting:
    def test_a_forgotten_worker_holds_nothing_and_may_come_back(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        index.apply(B, stored(KEYS))
        index.forget(A)
        assert (index.match(KEYS, [A, B]), index.digest(A)) == ([0, 10], 0)

        index.apply(A, stored(KEYS[:2]))
        assert index.match(KEYS, [A, B]) == [2, 10]
        assert index.digest(A) == digest_of((key, Tier.DEVICE) for key in KEYS[:2])

    def test_cleared_empties_every_tier(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        index.apply(A, stored(KEYS, tier=Tier.HOST))
        index.apply(A, Cleared())
        assert index.match(KEYS, [A], tier=Tier.HOST) == index.match(KEYS, [A]) == [0]
        assert index.digest(A) == 0

    def test_an_unknown_worker_is_forgotten_silently(self, index: BlockIndex) -> None:
        index.forget(NOBODY)
        assert index.digest(NOBODY) == 0

    def test_memory_comes_back(self, index: BlockIndex) -> None:
        for life in range(20):
            index.apply(A, stored(chain(life, 2000)))
            index.forget(A)
        for _ in range(20):
            index.apply(B, stored(KEYS))
        assert index.stats().keys == len(KEYS)


class TestStats:
    def test_held_counts_tiers_and_keys_counts_each_once(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS))
        index.apply(A, stored(KEYS[:1], tier=Tier.HOST))
        index.apply(B, stored(KEYS))
        stats = index.stats()
        assert (stats.held, stats.keys) == ({A: 11, B: 10}, 11)
        assert stats.bytes > 0

    def test_a_workers_share_counts_each_block_by_its_holders(self, index: BlockIndex) -> None:
        index.apply(A, stored(KEYS[:4]))
        index.apply(B, stored(KEYS[:2]))
        index.apply(C, stored(KEYS[:1]))
        assert index.shares() == pytest.approx({A: 1 / 3 + 1 / 2 + 1 + 1, B: 1 / 3 + 1 / 2, C: 1 / 3})
        index.forget(C)
        index.apply(A, removed(KEYS[:4]))
        assert index.shares() == pytest.approx({B: 2})


class TestRefusals:
    @pytest.mark.parametrize(
        ("operation", "field"),
        [
            (Stored(0, b""), "keys"),
            (Stored(0, b"\1" * 12), "keys"),
            (stored([5, 0]), "keys: 0"),
            (stored([5, 6, 5]), "keys: a key occurs twice"),
            (stored([5, 6], parent=6), "keys: a key occurs twice"),
            (stored([5], parent=2**64), "parent"),
            (stored([5], parent=-1), "parent"),
            (Stored(0, stored([5]).keys, 9), "tier"),  # type: ignore[arg-type]  # as a careless caller might
            (Removed(b"\1" * 7), "keys"),
            (removed([0]), "keys: 0"),
            (Removed(removed([5]).keys, 9), "tier"),  # type: ignore[arg-type]  # as above
        ],
    )
    def test_a_bad_operation_changes_nothing(self, index: BlockIndex, operation: Operation, field: str) -> None:
        index.apply(A, stored(KEYS))
        before = index.digest(A), index.stats()
        for worker in (A, B):
            with pytest.raises(OperationError, match=field):
                index.apply(worker, operation)
        assert (index.digest(A), index.stats()) == before

    def test_what_exceeds_the_bound_on_blocks_is_refused_whole(self) -> None:
        index = BlockIndex(max_held=12)
        index.apply(A, stored(KEYS))
        with pytest.raises(IndexFullError):
            index.apply(B, stored(KEYS))
        assert index.match(KEYS, [A, B]) == [10, 0]
        assert B not in index.stats().held

        index.forget(A)
        index.apply(B, stored(KEYS))
        assert index.match(KEYS, [A, B]) == [0, 10]

    def test_what_exceeds_the_bound_on_workers_is_refused(self) -> None:
        index = BlockIndex(max_workers=2)
        index.apply(A, stored(KEYS))
        index.apply(B, stored(KEYS))
        with pytest.raises(IndexFullError):
            index.apply(C, stored(KEYS))
        index.forget(A)
        index.apply(C, stored(KEYS))
        assert index.match(KEYS, [A, B, C]) == [0, 10, 10]


WORKERS = [worker_id("default/demo", name) for name in "abcd"]
# Chains that share beginnings, as prompts do.
ROOT = chain(1, 12)
CHAINS = [ROOT, *([*ROOT[:cut], *chain(cut + 2, 8)] for cut in (0, 3, 3 + 4, 12))]

workers = st.sampled_from(WORKERS)
tiers = st.sampled_from(list(Tier))


@st.composite
def slices(draw: st.DrawFn) -> tuple[list[BlockKey], int]:
    """Some consecutive blocks of a chain, and the key before them."""
    keys = draw(st.sampled_from(CHAINS))
    start = draw(st.integers(0, len(keys) - 1))
    stop = draw(st.integers(start + 1, len(keys)))
    return keys[start:stop], keys[start - 1] if start else 0


class IndexMachine(RuleBasedStateMachine):
    """Any history of operations gives what plain sets give."""

    @initialize()
    def begin(self) -> None:
        self.index = BlockIndex()
        self.model: dict[WorkerId, set[tuple[int, Tier]]] = {worker: set() for worker in WORKERS}

    @rule(worker=workers, part=slices(), tier=tiers)
    def store(self, worker: WorkerId, part: tuple[list[BlockKey], int], tier: Tier) -> None:
        keys, parent = part
        self.index.apply(worker, stored(keys, parent, tier))
        self.model[worker] |= {(key, tier) for key in keys}

    @rule(worker=workers, part=slices(), tier=tiers)
    def remove(self, worker: WorkerId, part: tuple[list[BlockKey], int], tier: Tier) -> None:
        self.index.apply(worker, removed(reversed(part[0]), tier))
        self.model[worker] -= {(key, tier) for key in part[0]}

    @rule(worker=workers)
    def clear(self, worker: WorkerId) -> None:
        self.index.apply(worker, Cleared())
        self.model[worker] = set()

    @rule(worker=workers)
    def forget(self, worker: WorkerId) -> None:
        self.index.forget(worker)
        self.model[worker] = set()

    @rule(keys=st.sampled_from(CHAINS), tier=tiers, limit=st.none() | st.integers(0, 25))
    def match(self, keys: list[BlockKey], tier: Tier, limit: int | None) -> None:
        expected = [_depth(keys[:limit], self.model[worker], tier) for worker in WORKERS]
        assert self.index.match(keys, WORKERS, tier=tier, limit=limit) == expected

    @invariant()
    def agrees(self) -> None:
        assert [self.index.digest(w) for w in WORKERS] == [digest_of(held) for held in self.model.values()]
        held = self.index.stats().held
        assert [held.get(worker, 0) for worker in WORKERS] == [len(held) for held in self.model.values()]


TestHistories = IndexMachine.TestCase
TestHistories.settings = settings(max_examples=5 * settings().max_examples, stateful_step_count=30, deadline=None)


def _depth(keys: list[BlockKey], held: set[tuple[int, Tier]], tier: Tier) -> int:
    return next((i for i, key in enumerate(keys) if (key, tier) not in held), len(keys))
