"""Tenants' shares and kept blocks in the eviction order by block: pure, against a model that is a plain list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cachefleet_core.continuation import KEEP_MEMBER
from cachefleet_worker.plugin.budget.block_eviction import BlockOrder
from cachefleet_worker.plugin.budget.owners import NOBODY, keep_seconds, largest, owner_of
from cachefleet_worker.plugin.budget.ranking import Ranking
from cachefleet_worker.plugin.live_policy import Shares

OWNERS = ("a", "b", "c", NOBODY)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def order(limit: int | None, shares: Shares, clock: Clock | None = None) -> BlockOrder:
    blocks = BlockOrder(clock or Clock())
    blocks.resize(limit, shares)
    return blocks


def run(blocks: BlockOrder, numbers: list[int], owner: str, seconds: int = 0) -> list[int]:
    """A request of ``owner`` computes these blocks and ends; the blocks evicted for it."""
    blocks.cached(numbers, owner, seconds)
    return blocks.freed(numbers[::-1], [])


def test_over_its_share_a_tenant_evicts_its_own() -> None:
    blocks = order(6, Shares(0.5))
    assert run(blocks, [1, 2, 3], "a") == []
    assert run(blocks, [4, 5, 6], "b") == []
    assert run(blocks, [7, 8], "b") == [6, 5]
    assert blocks.owners() == {"a": 3, "b": 3}


def test_what_nobody_else_needs_anybody_may_have() -> None:
    blocks = order(6, Shares(0.5))
    assert run(blocks, [1, 2, 3, 4, 5, 6], "a") == []
    assert run(blocks, [7], "b") == [6]
    assert run(blocks, [8, 9], "b") == [5, 4]
    assert run(blocks, [10], "b") == [7]


def test_a_tenant_within_its_share_takes_from_those_over_theirs_first() -> None:
    blocks = order(9, Shares(0.34, {"a": 0.2}))
    run(blocks, [1, 2, 3], "c")
    run(blocks, [4, 5, 6, 7], "a")
    run(blocks, [8, 9], "b")
    assert run(blocks, [10], "b") == [7]
    assert run(blocks, [11], "c") == [3]
    assert blocks.owners() == {"a": 3, "b": 3, "c": 3}


def test_blocks_without_a_salt_are_a_tenant_of_their_own() -> None:
    blocks = order(4, Shares(0.5))
    blocks.freed([1, 2, 3], [])
    run(blocks, [4], "a")
    assert run(blocks, [5], "a") == [1]
    assert blocks.owners() == {NOBODY: 2, "a": 2}


def test_new_shares_hold_for_what_was_kept_before() -> None:
    blocks = order(4, Shares())
    run(blocks, [1, 2], "a")
    run(blocks, [3, 4], "b")
    assert blocks.resize(4, Shares(0.5, {"b": 0.25})) == []
    assert run(blocks, [5], "a") == [2]
    assert blocks.resize(2, Shares(0.5)) == [1, 4]


def test_kept_blocks_go_last_until_their_time_is_over() -> None:
    clock = Clock()
    blocks = order(4, Shares(kept=0.5), clock)
    run(blocks, [1, 2], "a", 300)
    run(blocks, [3, 4], "b")
    assert run(blocks, [5], "b") == [4]
    clock.now = 301
    assert run(blocks, [6], "b") == [2]
    assert run(blocks, [7], "b") == [1]


def test_no_more_is_kept_than_may_be_and_the_least_recent_gives_way() -> None:
    blocks = order(6, Shares(kept=0.5))
    run(blocks, [1, 2, 3], "a", 86_400)
    run(blocks, [4, 5], "b", 300)
    assert run(blocks, [6, 7], "b") == [3]
    assert run(blocks, [8], "b") == [2]
    assert run(blocks, [9], "b") == [7]


def test_of_a_chain_that_is_too_large_to_be_kept_the_beginning_is() -> None:
    blocks = order(4, Shares(kept=0.5))
    run(blocks, [1, 2, 3, 4], "a", 300)
    assert run(blocks, [5, 6], "b") == [4, 3]
    assert run(blocks, [7], "b") == [6]


def test_over_its_share_even_kept_blocks_go() -> None:
    blocks = order(4, Shares(0.25, kept=1.0))
    run(blocks, [1, 2], "a", 300)
    run(blocks, [3, 4], "b")
    assert run(blocks, [5], "c") == [4]
    assert run(blocks, [6], "c") == [5]
    assert blocks.resize(3, Shares(0.34, kept=1.0)) == [2]


def test_room_is_made_in_the_same_order() -> None:
    blocks = order(4, Shares(0.5))
    run(blocks, [1], "b")
    run(blocks, [2, 3, 4], "a")
    assert blocks.biased
    assert blocks.take(2) == [4, 1]
    assert blocks.take(9) == [3, 2]
    assert blocks.owners() == {}


def test_without_shares_the_order_is_vllms() -> None:
    blocks = order(4, Shares(1.0, {"a": 1.0}))
    run(blocks, [1, 2], "a")
    assert not blocks.biased


def test_who_owns_a_block_and_how_long_it_is_kept() -> None:
    assert owner_of(None) == owner_of("") == NOBODY
    assert len(owner_of("salt")) == 32
    assert "salt" not in owner_of("salt")
    values: list[Any] = [300, 3600, 86_400, 301, True, "300", None, 300.0]
    assert [keep_seconds({KEEP_MEMBER: value}) for value in values] == [300, 3600, 86_400, 0, 0, 0, 0, 0]
    assert keep_seconds(None) == 0


def test_only_the_largest_owners_are_told() -> None:
    assert largest({NOBODY: 9, "a": 1, "b": 3, "c": 2, "d": 0}, 2) == {"b": 3, "c": 2}


@dataclass(eq=False)
class Idle:
    """A block of the model."""

    number: int
    owner: str
    until: float
    spent: bool = False


class Traffic(RuleBasedStateMachine):
    """Requests of several tenants; a list of idle blocks, least recent first, stands for the order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.blocks = BlockOrder(self.clock)
        self.idle: list[Idle] = []
        self.spent: list[Idle] = []
        """Blocks that were to be kept and are no longer, in that order; they may be gone."""
        self.limit: int | None = None
        self.shares = Shares()
        self.numbers = 0

    @rule(
        limit=st.none() | st.integers(0, 12),
        default=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        kept=st.sampled_from([0, 0.5]),
    )
    def bound(self, limit: int | None, default: float, kept: float) -> None:
        self.limit, self.shares = limit, Shares(default, {"c": 0.6}, kept)
        assert self.blocks.resize(limit, self.shares) == self._model_excess(None)

    @rule(seconds=st.sampled_from([1, 200, 4000]))
    def later(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(owner=st.sampled_from(OWNERS), count=st.integers(1, 6), seconds=st.sampled_from([0, 0, 300, 3600]))
    def run(self, owner: str, count: int, seconds: int) -> None:
        numbers = list(range(self.numbers + 1, self.numbers + 1 + count))
        self.numbers += count
        self.blocks.cached(numbers, owner, seconds)
        self._free(numbers[::-1], owner, seconds)

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def hit(self, data: Any) -> None:
        """A request finds some idle blocks of one tenant, and ends."""
        one = data.draw(st.sampled_from(self.idle))
        found = [block for block in self.idle if block.owner == one.owner and block.number <= one.number]
        numbers = sorted((block.number for block in found), reverse=True)
        seconds = {number: self.blocks._keep.get(number, 0) for number in numbers}
        self.blocks.touched(numbers)
        self.idle = [block for block in self.idle if block not in found]
        assume_one = set(seconds.values())
        if len(assume_one) == 1:
            self._free(numbers, one.owner, assume_one.pop())
        else:
            self.blocks.gone(numbers)

    @precondition(lambda self: self.idle)
    @rule(count=st.integers(1, 4))
    def room(self, count: int) -> None:
        before = self._by_owner()
        victims = self.blocks.take(count)
        assert victims == self._model_evict(min(count, sum(before.values())), None)

    @invariant()
    def agrees(self) -> None:
        assert len(self.blocks) == len(self.idle)
        assert self.blocks.owners() == self._by_owner()
        assert all(block.number in self.blocks for block in self.idle)
        assert self.limit is None or len(self.idle) <= self.limit

    def _free(self, numbers: list[int], owner: str, seconds: int) -> None:
        if self.limit is not None and len(numbers) > self.limit:
            known = {number for number in numbers if number in self.blocks._standing}
            found = [number for number in numbers if number in known]
            room = max(0, len(self.idle) + len(found) - self.limit)
            assert sorted(self.blocks.freed(numbers, [])) == sorted(
                [number for number in numbers if number not in known] + found[:room]
            )
            self._add(found[room:], owner, seconds)
            return
        before = self._by_owner()
        self._add(numbers, owner, seconds)
        total = {**before, owner: before.get(owner, 0) + len(numbers)}
        expected = self._model_excess(owner)
        assert self.blocks.freed(numbers, []) == expected
        self._fair(owner, total)

    def _fair(self, owner: str, before: dict[str, int]) -> None:
        """Nobody over its share takes from others, nobody within its share gives to one over its own."""
        if self.limit is None or self.shares.even:
            return
        after = self._by_owner()
        over = before[owner] > self.shares.cap(owner, self.limit)
        for other, count in before.items():
            lost = count - after.get(other, 0)
            if other == owner or not lost:
                continue
            assert not over or after.get(owner, 0) <= self.shares.cap(owner, self.limit)
            if count <= self.shares.cap(other, self.limit):
                assert all(after.get(one, 0) <= self.shares.cap(one, self.limit) for one in before)

    def _add(self, numbers: list[int], owner: str, seconds: int) -> None:
        keepable = self.shares.keepable(self.limit) if seconds else 0
        plain = max(0, len(numbers) - keepable)
        until = self.clock.now + seconds if keepable else 0.0
        added = [Idle(number, owner, 0.0 if at < plain else until) for at, number in enumerate(numbers)]
        self.idle += added

    def _model_excess(self, payer: str | None) -> list[int]:
        excess = 0 if self.limit is None else len(self.idle) - self.limit
        return self._model_evict(excess, payer) if excess > 0 else []

    def _model_evict(self, count: int, payer: str | None) -> list[int]:
        self._spend()
        victims = []
        for _ in range(count):
            owners = self._payers(payer)
            here = [block for block in self.idle if block.owner in owners]
            spent = next((block for block in self.spent if block in here), None)
            victim = spent or next((block for block in here if not block.until), None) or here[0]
            self.idle.remove(victim)
            victims.append(victim.number)
        return victims

    def _payers(self, payer: str | None) -> set[str]:
        counts = self._by_owner()
        if self.limit is None or self.shares.even:
            return set(counts)
        over = {owner for owner, count in counts.items() if count > self.shares.cap(owner, self.limit)}
        return {payer} if payer in over else over or set(counts)

    def _spend(self) -> None:
        """Blocks whose time is over, then those beyond what may be kept, stop being kept, in this order."""
        kept = [block for block in self.idle if block.until and not block.spent]
        due = [block for block in kept if block.until <= self.clock.now]
        rest = [block for block in kept if block not in due]
        due += rest[: max(0, len(rest) - self.shares.keepable(self.limit))]
        for block in due:
            block.spent = True
            self.spent.append(block)

    def _by_owner(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for block in self.idle:
            counts[block.owner] = counts.get(block.owner, 0) + 1
        return counts


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_work_to_evict_does_not_grow_with_owners_and_kept_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, beyond = [0], BlockOrder._beyond

    def counted(self: BlockOrder, owner: str) -> int:
        looked[0] += 1
        return beyond(self, owner)

    monkeypatch.setattr(BlockOrder, "_beyond", counted)
    blocks = order(4000, Shares(0.0))
    for owner in range(400):
        run(blocks, list(range(10 * owner, 10 * owner + 10)), str(owner))
    assert len(blocks.resize(2000, Shares(0.0))) == 2000
    assert looked[0] < 400 + 4 * 2000


def test_to_keep_a_few_more_blocks_does_not_look_at_all_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = order(4000, Shares(kept=0.5))
    for number in range(0, 3000, 10):
        run(blocks, list(range(number, number + 10)), "a", 300)
    blocks.take(1)
    looked, by_age = [0], Ranking._by_age

    def counted(self: Ranking) -> Iterator[int]:
        for block in by_age(self):
            looked[0] += 1
            yield block

    monkeypatch.setattr(Ranking, "_by_age", counted)
    run(blocks, list(range(3000, 3010)), "a", 300)
    blocks.take(1)
    assert 0 < looked[0] <= 20
