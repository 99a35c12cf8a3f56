"""Hits of models with several KV cache groups: native code, the reference and the rule itself say the same."""

from __future__ import annotations

import struct
from random import Random

import cachefleet_native
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_core.block_keys import BlockKey, pack_keys
from cachefleet_core.hit_rule import PLAIN, HitRule, hit_blocks, window_key
from cachefleet_core.report_frames import Removed, Stored
from tests.reference.block_index import ReferenceIndex

WORKERS = [worker_id("ns/p", name) for name in "abcdef"]
NOBODY = worker_id("ns/p", "nobody")
KEYS = [BlockKey(number) for number in Random(7).sample(range(1, 2**63), 40)]

windows = st.lists(st.integers(1, 9), unique=True, max_size=3).map(lambda found: tuple(sorted(found)))
rules = st.builds(
    lambda full, found, dropped: HitRule(full or not found, found, dropped), st.booleans(), windows, st.integers(0, 1)
)


def indexes() -> tuple[BlockIndex, ReferenceIndex]:
    return BlockIndex(), ReferenceIndex()


class Fleet:
    """Workers that hold random blocks of one prompt, in each window of their rules other ones."""

    def __init__(self, chance: Random, workers: list[HitRule], share: float) -> None:
        self.rules = workers
        self.indexes = indexes()
        self.held: list[dict[int, set[int]]] = []
        for worker, rule in zip(WORKERS, workers, strict=False):
            first = chance.randrange(len(KEYS) + 1)
            held = {0: set(range(first)) if rule.full else set()}
            held |= {window: {at for at in range(len(KEYS)) if chance.random() < share} for window in rule.windows}
            self.held.append(held)
            for window, blocks in held.items():
                self._store(worker, window, blocks)

    def _store(self, worker: str, window: int, blocks: set[int]) -> None:
        """As an agent reports: runs that go on, then the removal of what is not held."""
        keys = [window_key(key, window) if window else key for key in KEYS]
        gone = [keys[at] for at in range(len(KEYS)) if at not in blocks]
        for index in self.indexes:
            index.apply(worker, Stored(0, pack_keys(keys)))  # type: ignore[arg-type]
            if gone:
                index.apply(worker, Removed(pack_keys(gone)))  # type: ignore[arg-type]

    def wanted(self, usable: int) -> list[int]:
        def depth(rule: HitRule, held: dict[int, set[int]]) -> int:
            first = len(held[0])
            if rule.plain:
                return first
            most = min(usable, len(KEYS))
            return hit_blocks(rule, min(first, most) if rule.full else most, lambda window, at: at in held[window])

        return [depth(rule, held) for rule, held in zip(self.rules, self.held, strict=True)]


@given(
    st.lists(rules, min_size=1, max_size=len(WORKERS)),
    st.integers(0, len(KEYS) + 2),
    st.sampled_from([0.5, 0.8, 0.97, 1.0]),
    st.integers(0, 2**32),
)
def test_every_index_predicts_by_the_rule(workers: list[HitRule], usable: int, share: float, seed: int) -> None:
    fleet = Fleet(Random(seed), workers, share)
    asked, given_rules = [*WORKERS[: len(workers)], NOBODY], [*workers, HitRule(windows=(2,))]
    for index in fleet.indexes:
        found = index.match(KEYS, asked, rules=given_rules, usable=usable)
        assert found == [*fleet.wanted(usable), 0]
        assert index.match(pack_keys(KEYS), asked, rules=given_rules, usable=usable) == found
    assert len({index.digest(asked[0]) for index in fleet.indexes}) == 1


@given(st.lists(rules, min_size=1, max_size=len(WORKERS)), st.integers(0, len(KEYS)), st.integers(0, 2**32))
def test_candidates_looked_up_before_are_matched_by_their_rules(workers: list[HitRule], usable: int, seed: int) -> None:
    fleet = Fleet(Random(seed), workers, 0.9)
    native = fleet.indexes[0].native
    names = WORKERS[: len(workers)]
    candidates = cachefleet_native.Candidates(names, [(rule.full, rule.windows, rule.dropped) for rule in workers])
    packed = native.match_packed(pack_keys(KEYS), candidates, usable=usable)
    assert list(struct.unpack(f"<{len(names)}I", packed)) == fleet.wanted(usable)


@pytest.mark.parametrize("rules", [[(True, [1], 0)] * 2, [(True, [0], 0)]])
def test_rules_that_cannot_be_are_refused(rules: list[tuple[bool, list[int], int]]) -> None:
    with pytest.raises(ValueError, match="rules: "):
        cachefleet_native.Candidates(["a"], rules)


def test_plain_rules_change_nothing() -> None:
    for index in indexes():
        index.apply(WORKERS[0], Stored(BlockKey(0), pack_keys(KEYS)))
        assert index.match(KEYS, WORKERS[:2], rules=[PLAIN, PLAIN], usable=3) == [len(KEYS), 0]
