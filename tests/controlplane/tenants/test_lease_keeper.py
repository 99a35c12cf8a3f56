"""Replicas' lease keepers on a real PostgreSQL, which is killed and hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.tenant_records import Tenancy, TenantRecord, Totals, UsageRecord
from cachefleet_controlplane.tenants.budgets import Budgets
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_controlplane.tenants.lease_keeper import LeaseKeeper
from cachefleet_controlplane.tenants.leases import OtherReplicas
from cachefleet_controlplane.tenants.limits import Bucket, TenantLoad
from cachefleet_controlplane.tenants.sql_leases import SqlLeases
from cachefleet_core.fleet_status.tenant_limits import Limit
from cachefleet_core.tenancy import TenantId
from tests.controlplane.store.postgresql import PostgreSQL
from tests.controlplane.waiting import task, until

ACME = TenantId("acme")
NUMBER = 8
NOON = int(time.time()) // 86_400 * 86_400 + 43_200
LIMITED = TenantRecord(name=ACME, tokens_per_minute=600_000, requests_per_minute=60_000)


class Replica:
    """One replica's load of one tenant, and its keeper."""

    def __init__(self, database: Database, tenant: TenantRecord, number: int) -> None:
        self.tenant, self.directory = tenant, Directory.of(Tenancy("s", 1, (tenant,), ()), required=False)
        self.others, self.load = OtherReplicas(shared=True), TenantLoad()
        self.budgets = Budgets(others=self.others)
        self.keeper = LeaseKeeper(
            SqlLeases(database),
            self,
            {ACME: self.load},
            self.others,
            metrics=Metrics(),
            clock=time.monotonic,
            replica=f"r{number}",
            budgets=self.budgets,
        )

    def ask(self, tokens: int) -> bool:
        """As the admission does it, with a request that ends at once; whether it was let in."""
        now = time.monotonic()
        if self.load.record is not self.tenant:
            self.load.hold_to(self.tenant, now, self.others)
        if self.load.over(self.tenant, now) is not None:
            self.others.short.set()
            return False
        self.load.ask(1, now)
        self.load.spend(Totals(1, tokens), now)
        return True

    def ask_of_month(self, tenant: TenantRecord) -> bool:
        if self.budgets.over(tenant, NOON) is not None:
            self.others.short.set()
            return False
        self.budgets.add(UsageRecord(hour=NOON, tenant=ACME, model="m", requests=1))
        return True

    @property
    def left(self) -> int:
        """Tokens that it may use now."""
        return int(self.spent.level)

    @property
    def spent(self) -> Bucket:
        return self.load.buckets[Limit.TOKENS_PER_MINUTE]


class Fleet:
    """Eight replicas on one database."""

    def __init__(self, database: Database, tenant: TenantRecord = LIMITED) -> None:
        self.replicas = [Replica(database, tenant, number) for number in range(NUMBER)]

    async def exchange(self) -> None:
        for replica in self.replicas:
            await replica.keeper.exchange()

    def use_up(self, tokens: int) -> int:
        """Have every replica asked until it refuses; what all let in."""
        used = 0
        for replica in self.replicas:
            while used < 10**7 and replica.ask(tokens):
                used += tokens
        return used


@pytest.fixture
def shared(postgresql: PostgreSQL) -> Iterator[Fleet]:
    with closing(Database(postgresql.database(), timeout_seconds=1)) as database:
        made = Fleet(database)
        yield made
        for replica in made.replicas:
            replica.keeper._thread.shutdown()


@asynccontextmanager
async def known(fleet: Fleet) -> AsyncIterator[None]:
    """Within which all replicas know of each other, and have leases."""
    await fleet.exchange()
    await fleet.exchange()
    assert {replica.others.number for replica in fleet.replicas} == {NUMBER}
    assert all(replica.ask(10) for replica in fleet.replicas)
    await fleet.exchange()
    await fleet.exchange()
    yield


async def test_together_they_let_in_one_limit(shared: Fleet) -> None:
    async with known(shared):
        began, used = time.monotonic(), NUMBER * 10
        for _ in range(30):
            used += shared.use_up(100)
            await shared.exchange()
        most = 600_000 * (1 + (time.monotonic() - began) / 60)
    assert 0.98 * 600_000 <= used <= 1.1 * most, "closer than this in virtual time, where exchanges are never late"


async def test_while_the_database_is_gone_the_last_leases_go_on_and_are_told_of_afterwards(
    shared: Fleet, postgresql: PostgreSQL
) -> None:
    async with known(shared):
        held = sum(replica.left for replica in shared.replicas)
        assert 0 < held <= 600_000
        postgresql.kill()
        began = time.monotonic()
        await shared.exchange()
        assert all("unavailable" in replica.keeper.problem for replica in shared.replicas)
        used = shared.use_up(100)
        most = held + 600_000 * (time.monotonic() - began) / 60
        assert 0.9 * held <= used <= 1.1 * most + NUMBER * 100
        postgresql.start()
        for replica in shared.replicas:
            while replica.keeper.problem:
                await replica.keeper.exchange()
        await shared.exchange()
        seconds = time.monotonic() - began
        left = shared.replicas[-1].spent.free + sum(replica.left for replica in shared.replicas)
        assert left <= 600_000 * (1 + 2 * seconds / 60) - used, "what was used is known"


async def test_while_the_database_hangs_requests_wait_for_nothing(shared: Fleet, postgresql: PostgreSQL) -> None:
    async with known(shared):
        with postgresql.hung():
            asking = asyncio.create_task(shared.replicas[0].keeper.exchange())
            await asyncio.sleep(0.1)
            assert shared.replicas[0].ask(1), "by the last lease"
            assert not asking.done()
        await asking
        await shared.exchange()
        assert not any(replica.keeper.problem for replica in shared.replicas)


async def test_what_an_answer_that_was_lost_told_is_counted_once(shared: Fleet) -> None:
    one = shared.replicas[0]
    async with known(shared):
        assert one.ask(300_000)
        _, reports = one.keeper._reports()
        one.keeper._repository.exchange("r0", reports)  # whose answer is lost
        await one.keeper.exchange()
        await shared.exchange()
    left = shared.replicas[-1].spent.free + sum(replica.spent.level for replica in shared.replicas)
    assert left >= 600_000 - 300_000 - NUMBER * 10
    assert one.spent.told == one.spent.total == 300_010


async def test_together_they_let_in_one_limit_of_a_month(shared: Fleet) -> None:
    tenant = TenantRecord(name=ACME, requests_per_month=10_000)
    for replica in shared.replicas:
        replica.budgets.watch([tenant])
    await shared.exchange()
    await shared.exchange()  # all know of each other
    let_in = 0
    for _ in range(20):
        for replica in shared.replicas:
            while let_in < 20_000 and replica.ask_of_month(tenant):
                let_in += 1
        await shared.exchange()
    assert 0.98 * 10_000 <= let_in <= 1.02 * 10_000
    late = Replica(shared.replicas[0].keeper._repository._database, LIMITED, 9)  # type: ignore[attr-defined]
    late.budgets.watch([tenant])
    await late.keeper.exchange()
    assert not late.ask_of_month(tenant), "what is free is told to who has no lease"
    late.keeper._thread.shutdown()


async def test_keepers_that_run_exchange_by_themselves_and_give_up_at_the_end(shared: Fleet) -> None:
    async with AsyncExitStack() as stack:
        for replica in shared.replicas:
            await stack.enter_async_context(task(replica.keeper.run()))
        await until(lambda: all(replica.others.number == NUMBER for replica in shared.replicas))
        assert shared.replicas[3].ask(10)
        await until(lambda: shared.replicas[3].spent.told == 10)
        assert shared.replicas[3].left > 600_000 / 4, "half of what is free, as nobody else asks"
    fresh = Replica(shared.replicas[0].keeper._repository._database, LIMITED, 9)  # type: ignore[attr-defined]
    assert fresh.ask(10)
    await fresh.keeper.exchange()
    await fresh.keeper.exchange()
    assert fresh.others.number == 1
    assert fresh.left > 600_000 * 0.99
    fresh.keeper._thread.shutdown()


async def test_a_limit_that_is_lifted_or_changed_is_held_to_at_once(shared: Fleet) -> None:
    one = shared.replicas[0]
    async with known(shared):
        one.tenant = replace(LIMITED, tokens_per_minute=None, requests_per_minute=30_000)
        assert one.ask(10**9), "no limit of tokens"
        await one.keeper.exchange()
        assert one.ask(10)
        assert one.load.rooms(time.monotonic()).tokens is None
        requests = one.load.rooms(time.monotonic()).requests
        assert requests is not None
        assert (requests.limit, requests.remaining > 10_000) == (30_000, True)
