"""Shares of tenants in what a fleet computes, over whole histories of a server with slots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.place import fair_shares
from cachefleet_controlplane.gateway.place.fair_shares import CREDIT, Claim, FairShares, Ticket

WEIGHTS = {"a": 100, "b": 100, "c": 300}
LARGEST = 500


def claim(tenant: str) -> Claim:
    return Claim(("default", "m"), 50, 0.0, tenant, WEIGHTS.get(tenant, 100))


@dataclass
class Server:
    """So many slots, taken in the order of the shares."""

    slots: int = 2
    shares: FairShares = field(default_factory=FairShares)
    running: list[Ticket] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    came: int = 0

    def come(self, tenant: str, tokens: int) -> Ticket:
        self.came += 1
        ticket = Ticket(50, float(self.came), self.came, claim(tenant), 1, tokens)
        self.shares.enter(ticket)
        return ticket

    def work(self) -> bool:
        """Begin what has a slot, then end the oldest; whether anything was under way."""
        while len(self.running) < self.slots and (ticket := self.shares.first()) is not None:
            self.shares.began(ticket.claim, ticket.tokens)
            assert self.shares.leave(ticket)
            self.running.append(ticket)
            self.served[ticket.tenant] += ticket.tokens
            self.order.append(ticket.tenant)
        if not self.running:
            return False
        self.shares.ended(self.running.pop(0).claim, 0)
        return True


loads = st.lists(st.tuples(st.sampled_from(sorted(WEIGHTS)), st.integers(1, LARGEST)), max_size=60)


@given(loads=loads, slots=st.integers(1, 4))
def test_it_never_leaves_a_slot_empty_and_serves_everybody_once(loads: list[tuple[str, int]], slots: int) -> None:
    server = Server(slots)
    for tenant, tokens in loads:
        server.come(tenant, tokens)
    while server.work():
        assert len(server.running) == min(slots - 1, len(server.running) + server.shares.waiting)
    assert server.shares.waiting == 0
    assert server.served == sum((Counter({tenant: tokens}) for tenant, tokens in loads), Counter())
    assert server.shares.idle


@given(sizes=st.lists(st.integers(1, LARGEST), min_size=30, max_size=90), slots=st.integers(1, 4))
def test_of_tenants_that_wait_all_the_time_none_is_ahead_by_more_than_one_request_of_each(
    sizes: list[int], slots: int
) -> None:
    server = Server(slots)
    for number, tokens in enumerate(sizes):
        server.come(sorted(WEIGHTS)[number % 3], tokens)
    came = Counter(sorted(WEIGHTS)[number % 3] for number in range(len(sizes)))
    while server.work():
        begun = Counter(server.order)
        if any(begun[tenant] == came[tenant] for tenant in WEIGHTS):
            break  # one of them waits for nothing any more
        for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
            ahead = server.served[one] / WEIGHTS[one] - server.served[other] / WEIGHTS[other]
            assert abs(ahead) <= LARGEST / WEIGHTS[one] + LARGEST / WEIGHTS[other]


@given(past=st.integers(0, 60), tokens=st.integers(100, LARGEST))
def test_who_left_its_share_to_others_goes_first_by_no_more_than_that_nor_the_credit(past: int, tokens: int) -> None:
    server = Server(slots=1)
    for _ in range(past):
        server.come("a", tokens)
        server.work()
    for _ in range(2 * CREDIT // tokens):
        server.come("a", tokens)
        server.come("b", tokens)
    server.order.clear()
    owed = min(CREDIT, past * tokens)
    for _ in range(2 * CREDIT // tokens):
        server.work()
        so_far = Counter(server.order)
        assert abs((so_far["b"] - so_far["a"]) * tokens - min(owed, len(server.order) * tokens)) <= 2 * tokens
    assert so_far["a"] > 0


def test_who_asked_for_less_than_its_share_is_under_it_until_it_has_had_its_credit() -> None:
    shares = FairShares()
    for tokens in (CREDIT, 1000):
        assert shares.under("a") == (tokens == CREDIT)
        shares.began(claim("a"), tokens)
    assert shares.under("b")
    shares.began(claim("b"), CREDIT - 1)
    assert shares.under("b")
    shares.began(claim("b"), 2)
    assert not shares.under("b")


def test_weights_divide_what_is_computed() -> None:
    server = Server(slots=1)
    for _ in range(60):
        for tenant in WEIGHTS:
            server.come(tenant, 10)
    for _ in range(50):
        server.work()
    assert server.order.count("c") == pytest.approx(30, abs=1)
    assert server.order.count("a") == pytest.approx(10, abs=1)


def test_what_was_computed_in_the_end_counts_and_not_what_was_expected() -> None:
    shares = FairShares()
    one, other = claim("a"), claim("b")
    tickets = [Ticket(50, float(n), n, claim(tenant), 1, 100) for n, tenant in enumerate("abab")]
    for ticket in tickets:
        shares.enter(ticket)
    shares.began(one, 100)
    shares.began(other, 100)
    begun = shares.start("a")
    assert begun == shares.start("b")
    shares.ended(other, -90)  # it came from a cache
    assert shares.first() == tickets[1]
    shares.ended(one, 400)
    assert (shares.start("a"), shares.start("b")) == pytest.approx((begun + 4.0, begun - 0.9))


def test_a_long_request_is_served_while_others_keep_coming() -> None:
    server = Server(slots=1)
    server.come("a", LARGEST)
    while "a" not in server.order:
        assert len(server.order) < 3
        server.come("b", 1)
        server.work()
    server.come("a", LARGEST)
    while server.order.count("a") < 2:
        assert server.order.count("b") <= LARGEST + 1
        server.come("b", 1)
        server.work()


@settings(max_examples=20)
@given(tenants=st.integers(1, 50))
def test_tenants_of_which_nothing_waits_or_runs_are_forgotten(tenants: int) -> None:
    shares, most = FairShares(), 8
    before, fair_shares.MAX_IDLE = fair_shares.MAX_IDLE, most  # type: ignore[misc]
    try:
        shares.began(claim("busy"), 1)
        for number in range(tenants):
            each = claim(f"t{number}")
            shares.began(each, 7)
            shares.ended(each, 0)
            assert len(shares._shares) <= most
        shares.ended(claim("busy"), 0)
        assert shares.idle
    finally:
        fair_shares.MAX_IDLE = before  # type: ignore[misc]
