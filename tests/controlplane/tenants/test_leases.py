"""Leases of limits: replicas in virtual time, held against one token bucket."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefleet_controlplane.store.tenant_records import TenantRecord, Totals, UsageRecord
from cachefleet_controlplane.tenants.budgets import Budgets, BudgetUse
from cachefleet_controlplane.tenants.leases import (
    DAY_LEASE_SECONDS,
    LEASE_SECONDS,
    NEVER,
    OtherReplicas,
    Report,
    SharedBucket,
)
from cachefleet_controlplane.tenants.limits import TenantLoad
from cachefleet_core.fleet_status.tenant_limits import Limit
from cachefleet_core.tenancy import TenantId

ACME = TenantId("acme")
BAR = 0.02
"""Of a limit that replicas together may let in too much or too little."""
QUICK, SHORT, SLOW = 0.25, 0.1, 1.0
"""Seconds between exchanges, as the keeper has them."""


class Replica:
    """One tenant's load at one replica, and when it exchanges leases next."""

    def __init__(self, name: str, at: float) -> None:
        self.name, self.load, self.others = name, TenantLoad(), OtherReplicas(shared=True)
        self.at, self.last = at, at
        self.reached = True

    @property
    def leased(self) -> TenantLoad | BudgetUse:
        """What it exchanges."""
        return self.load


class Fleet:
    """Replicas that share one limit of a tenant, in virtual time, and all that they let in."""

    def __init__(self, number: int, tenant: TenantRecord, *, seed: int = 3) -> None:
        self.chance, self.tenant, self.now = random.Random(seed), tenant, 1000.0
        (self.limit,) = [limit for limit in Limit if getattr(tenant, limit) is not None]
        self.most: int = getattr(tenant, self.limit)
        self.bucket = SharedBucket(self.most, float(self.most), self.now)
        self.replicas = [Replica(f"r{each}", self.now + self.chance.uniform(0, QUICK)) for each in range(number)]
        self.let_in: list[tuple[float, int]] = []
        for replica in self.replicas:
            replica.others.number = number

    def ask(self, number: int, tokens: int = 40) -> bool:
        """As the admission does it, with a request that ends at once; whether it was let in."""
        replica = self.replicas[number]
        load = replica.load
        if load.record is not self.tenant:
            load.hold_to(self.tenant, self.now, replica.others)
        if load.over(self.tenant, self.now):
            replica.at = min(replica.at, max(self.now, replica.last + SHORT))
            return False
        load.ask(1, self.now)
        load.spend(Totals(1, tokens), self.now)
        self.let_in.append((self.now, 1 if self.limit.unit == "requests" else tokens))
        return True

    def exchange(self, replica: Replica) -> None:
        replica.last = self.now
        reports = replica.leased.reports(self.now)
        replica.at = self.now + (QUICK if reports else SLOW)
        if not replica.reached:
            return
        number = sum(one.reached for one in self.replicas)
        for limit, report in reports.items():
            lease = self.bucket.exchange(replica.name, report, replicas=number, now=self.now)
            replica.leased.take(limit, lease, self.now)
        replica.others.number = number
        replica.others.free = {(ACME, self.limit): self.bucket.free_at(self.now)}

    def until(self, end: float) -> None:
        """Let exchanges happen until a time."""
        while (replica := min(self.replicas, key=lambda one: one.at)).at <= end:
            self.now = max(self.now, replica.at)
            self.exchange(replica)
        self.now = end

    def run(self, seconds: float, rates: Sequence[float]) -> int:
        """Have replicas asked at these rates in requests a second; return how many were refused."""
        start, refused = self.now, 0
        for at, number in self._arrivals(seconds, rates):
            self.until(start + at)
            refused += not self.ask(number)
        self.until(start + seconds)
        return refused

    def _arrivals(self, seconds: float, rates: Sequence[float]) -> Iterator[tuple[float, int]]:
        queue = [(self.chance.expovariate(rate), number) for number, rate in enumerate(rates) if rate]
        heapq.heapify(queue)
        while queue and queue[0][0] < seconds:
            at, number = queue[0]
            yield at, number
            heapq.heapreplace(queue, (at + self.chance.expovariate(rates[number]), number))

    def used(self, since: float = 0.0) -> int:
        return sum(amount for at, amount in self.let_in if at >= since)

    def highest_excess(self) -> float:
        """By how much more than one bucket would let in was let in, at the worst time, in parts of the limit."""
        level, last, lowest = float(self.most), 1000.0, float(self.most)
        for at, amount in self.let_in:
            level, last = min(self.most, level + (at - last) * self.most / 60) - amount, at
            lowest = min(lowest, level)
        return max(0.0, -lowest) / self.most


class DayReplica(Replica):
    """One tenant's budget at one replica, which never hears of what others have written."""

    def __init__(self, name: str, at: float, tenant: TenantRecord) -> None:
        super().__init__(name, at)
        self.budgets = Budgets(others=self.others)
        self.budgets.watch([tenant])

    @property
    def leased(self) -> TenantLoad | BudgetUse:
        return self.budgets.held[ACME]


class DayFleet(Fleet):
    """Replicas that share a limit of a day or month, without an account; virtual time 0 is the begin of a day."""

    def __init__(self, number: int, tenant: TenantRecord, *, now: float = 1000.0) -> None:
        super().__init__(number, tenant)
        self.now = now
        self.bucket = SharedBucket(self.most, float(self.most), now, refill=NEVER)
        made = [DayReplica(one.name, one.at - 1000.0 + now, tenant) for one in self.replicas]
        for replica in made:
            replica.others.number = number
        self.days, self.replicas = made, list(made)

    def ask(self, number: int, tokens: int = 40) -> bool:
        replica, wall = self.days[number], MIDNIGHT + self.now
        if replica.budgets.over(self.tenant, wall):
            replica.at = min(replica.at, max(self.now, replica.last + SHORT))
            return False
        replica.budgets.begin(ACME)
        replica.budgets.end(ACME)
        replica.budgets.add(used(wall, tokens))
        self.let_in.append((self.now, 1 if self.limit.unit == "requests" else tokens))
        return True

    def exchange(self, replica: Replica) -> None:
        if self.now // 86_400 > self.bucket.at // 86_400:
            self.bucket.begin_period(self.now)
        super().exchange(replica)


MIDNIGHT = float(datetime(2027, 1, 15, tzinfo=UTC).timestamp())


def used(wall: float, tokens: int) -> UsageRecord:
    hour = int(wall) // 3600 * 3600
    return UsageRecord(hour=hour, tenant=ACME, model="m", requests=1, prompt_tokens=tokens)


REQUESTS = TenantRecord(name=ACME, requests_per_minute=1200)
TOKENS = TenantRecord(name=ACME, tokens_per_minute=60_000)
UNEVEN = (1.0, 0.5, 0.2, 0.2, 0.1, 0.05, 0.02, 0.0)


@pytest.mark.parametrize("tenant", [REQUESTS, TOKENS], ids=["requests", "tokens"])
@pytest.mark.parametrize("number", [1, 2, 8])
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
def test_replicas_let_in_what_one_bucket_would(tenant: TenantRecord, number: int, *, even: bool) -> None:
    """Twice the limit is asked, for three minutes from a full bucket."""
    fleet = Fleet(number, tenant)
    weights = [1.0] * number if even else UNEVEN[:number]
    rate = 2 * fleet.most / 60 / (1 if tenant is REQUESTS else 40)
    fleet.run(180, [rate * weight / sum(weights) for weight in weights])
    assert abs(fleet.used() / fleet.most - 4) <= BAR, "a bucket, and three minutes of refilling"
    assert fleet.highest_excess() <= BAR


@pytest.mark.parametrize("tenant", [REQUESTS, TOKENS], ids=["requests", "tokens"])
def test_below_the_limit_nobody_is_refused(tenant: TenantRecord) -> None:
    fleet = Fleet(8, tenant)
    rate = 0.8 * fleet.most / 60 / (1 if tenant is REQUESTS else 40)
    assert fleet.run(120, [rate * weight / sum(UNEVEN) for weight in UNEVEN]) == 0


def test_demand_that_moves_finds_the_room_of_the_replicas_that_it_left() -> None:
    fleet = Fleet(8, TOKENS)
    for step in range(24):
        fleet.run(7.5, [50.0 if number == step % 8 else 0.0 for number in range(8)])
    assert abs(fleet.used() / fleet.most - 4) <= BAR
    assert fleet.highest_excess() <= BAR


def test_a_burst_at_a_replica_that_was_not_asked_before_gets_through() -> None:
    fleet = Fleet(8, REQUESTS)
    assert all(fleet.ask(0) for _ in range(1200 // 16)), "before it has any lease"
    fleet.until(fleet.now + 3)
    refused = fleet.run(10, [100.0] + [0.0] * 7)
    assert refused <= 0.02 * 1000
    fleet.until(fleet.now + 60)
    assert fleet.ask(7)


def test_what_a_killed_replica_had_is_used_by_the_others() -> None:
    fleet = Fleet(8, TOKENS)
    fleet.run(60, [10.0] * 8)
    fleet.replicas.pop()
    since = fleet.now + LEASE_SECONDS
    fleet.run(125, [10.0] * 7)
    assert abs(fleet.used(since) / fleet.most - 2) <= BAR
    assert fleet.highest_excess() <= BAR


def test_while_the_store_is_gone_the_last_leases_go_on_and_are_accounted_for_afterwards() -> None:
    fleet = Fleet(8, TOKENS)
    fleet.run(60, [weight * 25 for weight in UNEVEN])
    for replica in fleet.replicas:
        replica.reached = False
    since = fleet.now
    fleet.run(60, [weight * 25 for weight in UNEVEN])
    assert 0.5 <= fleet.used(since) / fleet.most <= 1 + BAR, "each refills by its share, and demand is as it was"
    for replica in fleet.replicas:
        replica.reached = True
    fleet.run(60, [weight * 25 for weight in UNEVEN])
    fleet.run(60, [weight * 25 for weight in UNEVEN])
    assert fleet.used() / fleet.most <= 5 + BAR
    assert fleet.used(since + 60) / fleet.most >= 2 - BAR


def test_a_replica_that_is_cut_off_alone_pays_back_what_it_let_in() -> None:
    fleet = Fleet(2, TOKENS)
    fleet.run(60, [25.0, 25.0])
    fleet.replicas[1].reached = False
    fleet.run(60, [25.0, 25.0])
    fleet.replicas[1].reached = True
    fleet.run(120, [25.0, 25.0])
    assert abs(fleet.used() / fleet.most - 5) <= BAR


def test_small_limits_are_exceeded_by_a_request_a_replica_at_most() -> None:
    fleet = Fleet(8, TenantRecord(name=ACME, requests_per_minute=6))
    fleet.run(600, [1.0] * 8)
    assert 60 <= fleet.used() <= 6 + 60 + 8


DAYS = [
    TenantRecord(name=ACME, requests_per_day=1200),
    TenantRecord(name=ACME, tokens_per_day=60_000),
    TenantRecord(name=ACME, uncached_tokens_per_month=60_000),
]
TWENTY_SECONDS = {"requests": 60.0, "tokens": 75.0, "uncached_tokens": 75.0}
"""Requests a second that reach those limits in so long."""


@pytest.mark.parametrize("tenant", DAYS, ids=["requests", "tokens", "month"])
@pytest.mark.parametrize("number", [1, 2, 8])
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
def test_replicas_let_in_one_limit_of_a_day(tenant: TenantRecord, number: int, *, even: bool) -> None:
    """Asked twice as fast as would reach it in twenty seconds, and for long after."""
    fleet = DayFleet(number, tenant)
    weights = [1.0] * number if even else UNEVEN[:number]
    rate = 2 * TWENTY_SECONDS[fleet.limit.unit]
    fleet.run(60, [rate * weight / sum(weights) for weight in weights])
    assert abs(fleet.used() / fleet.most - 1) <= BAR


def test_a_limit_of_a_day_that_is_asked_for_at_one_replica_after_the_other_is_used_once() -> None:
    fleet = DayFleet(8, DAYS[1])
    for step in range(16):
        fleet.run(7.5, [50.0 if number == step % 8 else 0.0 for number in range(8)])
    assert abs(fleet.used() / fleet.most - 1) <= BAR


def test_a_new_day_begins_with_the_whole_limit_at_all_replicas() -> None:
    fleet = DayFleet(8, DAYS[0], now=86_400.0 - 40)
    fleet.run(40, [10.0] * 8)
    assert abs(fleet.used() / fleet.most - 1) <= BAR
    fleet.run(60, [10.0] * 8)
    assert abs(fleet.used() / fleet.most - 2) <= 2 * BAR


def test_while_the_store_is_gone_no_more_of_a_day_is_used_than_was_leased() -> None:
    fleet = DayFleet(8, DAYS[1])
    fleet.run(8, [5.0] * 8)
    before = fleet.used()
    for replica in fleet.replicas:
        replica.reached = False
    fleet.run(60, [5.0] * 8)
    assert fleet.used() > before, "the last leases go on"
    assert fleet.used() <= fleet.most * (1 + BAR)
    for replica in fleet.replicas:
        replica.reached = True
    fleet.run(60, [5.0] * 8)
    assert abs(fleet.used() / fleet.most - 1) <= BAR


def test_what_a_killed_replica_had_of_a_day_is_used_by_the_others() -> None:
    fleet = DayFleet(8, DAYS[1])
    fleet.run(8, [5.0] * 8)
    fleet.replicas.pop()
    fleet.run(DAY_LEASE_SECONDS + 40, [6.0] * 7)
    assert abs(fleet.used() / fleet.most - 1) <= BAR


def test_a_burst_at_all_replicas_before_any_has_a_lease_is_within_the_limit() -> None:
    fleet = DayFleet(8, DAYS[0])
    for number in range(8):
        while fleet.ask(number):
            pass
    assert fleet.used() == fleet.most / 2, "half of what is free, before anybody has told of it"
    fleet.run(20, [100.0] * 8)
    assert abs(fleet.used() / fleet.most - 1) <= BAR


def test_a_bucket_that_is_made_amid_a_day_lacks_what_was_used_before() -> None:
    budgets = Budgets(others=OtherReplicas(shared=True))
    budgets.watch([DAYS[1]])
    budgets.add(used(MIDNIGHT + 5, 20_000))
    assert budgets.over(DAYS[1], MIDNIGHT + 5) is None
    budgets.add(used(MIDNIGHT + 6, 100))
    (report,) = budgets.held[ACME].reports(5.0).values()
    assert (report.total - report.told, report.used) == (100, 20_000)
    bucket = SharedBucket.begun(report, 5.0, NEVER)
    lease = bucket.exchange("a", report, replicas=1, now=5.0)
    assert lease.stock + lease.free == 39_900
    assert bucket.free_at(50_000.0) == lease.free, "it does not refill"


steps = st.tuples(st.integers(0, 3), st.floats(0, 20), st.integers(0, 400), st.floats(0, 100), st.booleans())


@given(st.integers(1, 1000), st.lists(steps, max_size=60))
@settings(max_examples=60)
def test_a_bucket_gives_no_more_than_it_has(limit: int, moves: list[tuple[int, float, int, float, bool]]) -> None:
    """What replicas hold and what is free is never over the limit, and nothing that was used is counted twice."""
    bucket, now, totals = SharedBucket(limit, float(limit), 0.0), 0.0, dict.fromkeys("abcd", 0)
    for number, pause, used, demand, leaves in moves:
        now, name = now + pause, "abcd"[number]
        totals[name] += used
        report = Report(limit, totals[name], totals[name] - used, demand, leaves)
        lease = bucket.exchange(name, report, replicas=4, now=now)
        held = sum(one.stock for one in bucket.held.values())
        assert bucket.free + held <= limit + 1e-6
        assert lease.stock * bucket.free >= 0, "what is there is given, or what is owed"
        before = bucket.free_at(now) + held
        again = bucket.exchange(name, report, replicas=4, now=now)
        assert bucket.free + sum(one.stock for one in bucket.held.values()) == pytest.approx(before)
        assert again.total == lease.total


def test_a_changed_limit_is_changed_once_for_all() -> None:
    bucket = SharedBucket(100, 100.0, 0.0)
    bucket.exchange("a", Report(100, 60, 0, 1.0), replicas=2, now=0.0)
    bucket.exchange("b", Report(200, 0, 0, 1.0), replicas=2, now=0.0)
    bucket.exchange("a", Report(200, 60, 60, 1.0), replicas=2, now=0.0)
    assert bucket.free + sum(one.stock for one in bucket.held.values()) == pytest.approx(140)
