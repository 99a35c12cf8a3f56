"""What contracts hold in both eviction orders: pure, without vLLM."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cachefleet_core.report_fields import SaltShare
from cachefleet_core.report_frames import Policy
from cachefleet_worker.plugin.budget.block_eviction import BlockOrder
from cachefleet_worker.plugin.budget.chain_eviction import ChainOrder
from cachefleet_worker.plugin.budget.contract_ages import ContractAges
from cachefleet_worker.plugin.live_policy import EVEN, STOCK, Shares, succeed

HALF = Shares(own={"a": 0.5}, held={"a": 300})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def order(limit: int, shares: Shares, clock: Clock | None = None) -> BlockOrder:
    blocks = BlockOrder(clock or Clock())
    blocks.resize(limit, shares)
    return blocks


def run(blocks: BlockOrder, numbers: list[int], owner: str, seconds: int = 0) -> list[int]:
    """A request of ``owner`` computes these blocks and ends; the blocks evicted for it."""
    blocks.cached(numbers, owner, seconds)
    return blocks.freed(numbers[::-1], [])


def test_a_flood_evicts_its_own_where_a_contract_holds_the_rest() -> None:
    blocks = order(6, HALF)
    run(blocks, [1, 2, 3], "a")
    assert run(blocks, [4, 5, 6], "b") == []
    assert run(blocks, [7, 8], "b") == [6, 5]
    assert run(blocks, list(range(10, 15)), "b") == [4, 8, 7, 14, 13]
    assert blocks.owners() == {"a": 3, "b": 3}
    assert not blocks.breaches


def test_beyond_its_share_a_contract_holds_nothing() -> None:
    blocks = order(6, HALF)
    run(blocks, [1, 2, 3, 4, 5], "a")
    assert run(blocks, [6, 7], "b") == [5]
    assert run(blocks, [8], "b") == [4]
    assert run(blocks, [9], "b") == [7]


def test_past_its_retention_a_block_goes_by_age_as_anybodys() -> None:
    clock = Clock()
    blocks = order(6, HALF, clock)
    run(blocks, [1], "b")
    run(blocks, [2], "a")
    clock.now = 200
    run(blocks, [3], "a")
    run(blocks, [4, 5, 6], "b")
    clock.now = 302
    assert run(blocks, [7], "b") == [1]
    assert run(blocks, [8], "b") == [2]
    assert run(blocks, [9], "b") == [6]


def test_for_running_requests_what_is_held_goes_last_and_is_counted() -> None:
    blocks = order(6, HALF)
    run(blocks, [1, 2, 3], "a")
    run(blocks, [4, 5], "b")
    assert blocks.biased
    assert blocks.take(3) == [5, 4, 3]
    assert blocks.breaches == {"a": 1}


def test_a_contract_replaces_what_its_requests_ask() -> None:
    blocks = order(4, Shares(own={"a": 0.5}, kept=1.0, held={"a": 300}))
    run(blocks, [1, 2, 3], "a", 3600)
    run(blocks, [4], "b", 3600)
    assert run(blocks, [5], "b") == [3]


def test_what_is_used_again_stays_and_counts_from_then() -> None:
    clock = Clock()
    blocks = order(4, HALF, clock)
    run(blocks, [1, 2], "a")
    clock.now = 299
    blocks.touched([1])
    blocks.freed([1], [])
    clock.now = 400
    assert run(blocks, [3, 4, 5], "b") == [2]
    assert 1 in blocks


def test_a_chain_over_the_whole_bound_costs_what_it_found_nothing_that_is_held() -> None:
    blocks = order(4, HALF)
    run(blocks, [1, 2], "a")
    blocks.touched([1, 2])
    run(blocks, [3, 4, 5], "b")
    blocks.cached([6, 7, 8], "a")
    assert sorted(blocks.freed([8, 7, 6, 2, 1], [])) == [5, 6, 7, 8]
    assert blocks.owners() == {"a": 2, "b": 2}


def test_contracts_come_and_go_with_the_policy() -> None:
    clock = Clock()
    blocks = order(4, Shares(kept=0.5), clock)
    run(blocks, [1, 2], "a", 300)
    run(blocks, [3, 4], "b")
    clock.now = 1000
    assert blocks.resize(4, HALF) == []
    clock.now = 1200
    assert run(blocks, [5], "b") == [4]
    assert blocks.resize(4, EVEN) == []
    assert run(blocks, [6, 7, 8], "b") == [2, 1, 3]
    assert blocks.resize(None, HALF) == []
    assert not blocks._ages


def test_times_of_use_are_remembered_in_a_bounded_number_of_spans() -> None:
    ages = ContractAges(256)
    for second in range(10_000):
        ages.add(second + 1, second / 2)
        over = ages.lapse(second / 2)
        assert over <= max(0, second + 1 - 512) <= over + 3
    assert len(ages._spans) <= 258
    endless = ContractAges(0)
    endless.add(1, 0.0)
    assert endless.lapse(1e9) == 0


def test_the_policy_tells_which_owners_have_one() -> None:
    told = (
        SaltShare(salt="a" * 32, share=0.5, guaranteed=True, retention_seconds=60),
        SaltShare(salt="b" * 32, share=1),
    )
    policy = succeed(STOCK, Policy(pool="p", generation=1, tenant_shares=told))
    assert policy.shares == Shares(own={"a" * 32: 0.5, "b" * 32: 1}, held={"a" * 32: 60})
    assert not policy.shares.even
    assert Shares(own={"a": 1.0}).even
    assert not Shares(own={"a": 1.0}, held={"a": 0}).even


def closed(chains: ChainOrder, name: str, owner: str, numbers: list[int]) -> list[int]:
    """A request of ``owner`` that caches blocks and ends; the blocks evicted for it."""
    chains.begun(name, owner)
    return sorted(chains.closed(name, numbers, []))


def chained(limit: int, shares: Shares, clock: Clock | None = None) -> ChainOrder:
    chains = ChainOrder(clock or Clock())
    chains.resize(limit, shares)
    return chains


def test_in_chains_a_flood_evicts_its_own() -> None:
    chains = chained(8, HALF)
    closed(chains, "r1", "a", [1, 2, 3, 4])
    assert closed(chains, "r2", "b", [5, 6, 7]) == []
    assert closed(chains, "r3", "b", [8, 9]) == [5, 6, 7]
    assert closed(chains, "r4", "b", [10, 11, 12, 13, 14]) == [10, 11, 12, 13, 14], "it would cost what is held"
    assert chains.owners() == {"a": 4, "b": 2}


def test_in_chains_retention_ends_and_running_requests_come_first() -> None:
    clock = Clock()
    chains = chained(8, HALF, clock)
    closed(chains, "r1", "a", [1, 2])
    closed(chains, "r2", "b", [3, 4])
    assert chains.take(3) == [3, 4, 1, 2]
    assert chains.breaches == {"a": 2}
    closed(chains, "r3", "a", [5, 6])
    closed(chains, "r4", "b", [7, 8, 9, 10, 11, 12])
    clock.now = 300
    assert closed(chains, "r5", "b", [13]) == [5, 6]
    assert chains.breaches == {"a": 2}


def test_in_chains_what_left_a_running_requests_window_goes_before_what_is_held() -> None:
    chains = chained(8, HALF)
    closed(chains, "r1", "a", [1, 2, 3, 4])
    chains.begun("r2", "b")
    assert chains.slid("r2", [5, 6, 7, 8], lambda: 2) == []
    assert chains.slid("r2", [9, 10], lambda: 2) == [5, 6]
    assert chains.owners() == {"a": 4, "b": 4}


def test_in_chains_a_new_contract_counts_from_now() -> None:
    clock = Clock()
    chains = chained(4, EVEN, clock)
    closed(chains, "r1", "a", [1, 2])
    closed(chains, "r2", "b", [3, 4])
    clock.now = 1000
    assert chains.resize(4, HALF) == []
    clock.now = 1299
    assert closed(chains, "r3", "b", [5]) == [3, 4]


CONTRACTS: list[dict[str, tuple[float, int]]] = [
    {},
    {"a": (0.5, 300)},
    {"a": (0.5, 300), "b": (0.25, 0)},
    {"a": (0.25, 300), "b": (0.75, 600)},
]


class Promised(RuleBasedStateMachine):
    """Requests of tenants with and without contracts; what the contracts hold is reckoned anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.blocks = BlockOrder(self.clock)
        self.idle: dict[int, tuple[str, float]] = {}
        """Owner and time of last use of idle blocks, in that order."""
        self.limit: int | None = None
        self.contracts: dict[str, tuple[float, int]] = {}
        self.numbers = 0

    @rule(
        limit=st.none() | st.integers(0, 12),
        default=st.sampled_from([0.25, 1.0]),
        contracts=st.sampled_from(CONTRACTS),
        kept=st.sampled_from([0, 0.5]),
    )
    def bound(self, limit: int | None, default: float, contracts: dict[str, tuple[float, int]], kept: float) -> None:
        before, self.limit, self.contracts = self.contracts, limit, {} if limit is None else contracts
        for number, (owner, _) in self.idle.items():
            new = self.contracts.get(owner)
            if new is not None and (owner not in before or before[owner][1] != new[1]):
                self.idle[number] = owner, self.clock.now
        own = {owner: share for owner, (share, _) in contracts.items()}
        held = {owner: seconds for owner, (_, seconds) in contracts.items()}
        self._evicted(self.blocks.resize(limit, Shares(default, own, kept, held)))

    @rule(seconds=st.sampled_from([100, 200, 700]))
    def later(self, seconds: int) -> None:
        """Longer than a span of any contract, so that ages are exact."""
        self.clock.now += seconds

    @rule(owner=st.sampled_from("abcd"), new=st.integers(0, 6), found=st.integers(0, 3), keep=st.sampled_from([0, 300]))
    def run(self, owner: str, new: int, found: int, keep: int) -> None:
        """A request finds idle blocks of its tenant, computes others, and ends."""
        beginning = [number for number, (other, _) in self.idle.items() if other == owner][:found]
        fresh = list(range(self.numbers + 1, self.numbers + 1 + new))
        self.numbers += new
        self.blocks.touched(beginning)
        self.blocks.cached(fresh, owner, keep)
        chain = [*fresh[::-1], *beginning[::-1]]
        victims = self.blocks.freed(chain, [])
        for number in beginning:
            del self.idle[number]
        refused = self.limit is not None and len(chain) > self.limit
        self.idle |= {number: (owner, self.clock.now) for number in chain if not refused or number in beginning}
        assert not refused or set(fresh) <= set(victims)
        self._evicted([number for number in victims if not (refused and number in fresh)])

    @rule(count=st.integers(1, 5))
    def room(self, count: int) -> None:
        """Running requests need room."""
        held, before = self._held(), self.blocks.breaches.total()
        victims = self.blocks.take(count)
        lost = held & set(victims)
        assert not lost or set(self.idle) - held <= set(victims)
        assert self.blocks.breaches.total() - before == len(lost)
        assert len(victims) == min(count, len(self.idle))
        self._remove(victims)

    @invariant()
    def agrees(self) -> None:
        assert len(self.blocks) == len(self.idle)
        assert all(number in self.blocks for number in self.idle)
        assert self.limit is None or len(self.idle) <= self.limit

    def _held(self) -> set[int]:
        """The blocks that contracts hold now: of each tenant the last used ones within its share and retention."""
        held: set[int] = set()
        for owner, (share, seconds) in self.contracts.items():
            used = {number: at for number, (other, at) in self.idle.items() if other == owner}
            last = list(used)[max(0, len(used) - int(share * (self.limit or 0))) :]
            held |= {number for number in last if not seconds or self.clock.now < used[number] + seconds}
        return held

    def _evicted(self, victims: list[int]) -> None:
        """The bound alone never costs a contract anything."""
        before = self.blocks.breaches.total()
        assert not self._held() & set(victims)
        assert before == self.blocks.breaches.total()
        self._remove(victims)

    def _remove(self, victims: list[int]) -> None:
        for number in victims:
            del self.idle[number]


TestPromised = Promised.TestCase
TestPromised.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_work_without_contracts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a policy without contracts reckons none")

    for name in ("_unheld", "_count_breaches"):
        monkeypatch.setattr(BlockOrder, name, refuse)
    monkeypatch.setattr(ContractAges, "lapse", refuse)
    blocks = order(4, Shares(0.5))
    run(blocks, [1, 2, 3], "a")
    run(blocks, [4, 5], "b")
    assert blocks.take(2) == [2, 1]
