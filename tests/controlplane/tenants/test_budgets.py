"""What was used in a day and month of UTC, held against a plain account, and read from a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import KeyRecord, TenantRecord, Totals, UsageRecord
from cachefleet_controlplane.store.usage_log import SqlUsage, UsageBounds, UsageLog
from cachefleet_controlplane.tenants.budget_keeper import BudgetKeeper
from cachefleet_controlplane.tenants.budgets import Budgets, Period, period_end, period_start
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_controlplane.tenants.rate_limit_headers import Room, Rooms
from cachefleet_core.fleet_status.tenant_limits import BUDGET, Limit
from cachefleet_core.tenancy import TenantId
from tests.controlplane.waiting import task, until

ACME, UMBRELLA = TenantId("acme"), TenantId("umbrella")
HOUR = 3600


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


NOON = at("2027-03-15T12:30")


def used(when: float, tokens: int, tenant: TenantId = ACME, charged: int = 0) -> UsageRecord:
    hour = int(when) // HOUR * HOUR
    return UsageRecord(
        hour=hour, tenant=tenant, model="m", requests=1, prompt_tokens=tokens + 7, cached_tokens=7, charged=charged
    )


def totals(requests: int, tokens: int, charged: int) -> Totals:
    """What so many requests used, each as of ``used``."""
    return Totals(requests, uncached_tokens=tokens, cached_tokens=7 * requests, spend=charged)


@pytest.mark.parametrize("limit", BUDGET)
def test_each_limit_by_the_calendar_counts_its_own_unit(limit: Limit) -> None:
    one = UsageRecord(hour=NOON // HOUR * HOUR, tenant=ACME, model="m", requests=2, key="acme/1")
    one = replace(one, prompt_tokens=1030, cached_tokens=1000, completion_tokens=500, charged=9)
    apart = {"uncached_tokens": 30, "cached_tokens": 1000, "output_tokens": 500, "tokens": 530}
    used = {"requests": 2, "spend": 9, **apart}[limit.unit]
    for most in (used + 1, used):
        limited: dict[str, Any] = {limit: most}
        key = KeyRecord(id="1", tenant=ACME, hash="h", hint="cf-", created=0.0, **limited)
        tenant, budgets = TenantRecord(name=ACME, **limited), Budgets()
        budgets.watch([tenant, key])
        budgets.add(one)
        reached = (limit, period_end(Period(limit.period), NOON) - NOON) if most == used else None
        assert (budgets.over(tenant, NOON), budgets.over(key, NOON)) == (reached, reached)


def test_requests_count_as_soon_as_they_are_let_in() -> None:
    tenant, budgets = TenantRecord(name=ACME, requests_per_day=2), Budgets()
    budgets.watch([tenant])
    budgets.begin(ACME)
    assert budgets.over(tenant, NOON) is None
    budgets.begin(ACME)
    assert budgets.over(tenant, NOON) == (Limit.REQUESTS_PER_DAY, period_end(Period.DAY, NOON) - NOON)
    rooms = budgets.rooms(tenant, NOON)
    assert rooms is not None
    assert rooms.requests == Room(2, 0, period_end(Period.DAY, NOON) - NOON)
    budgets.end(ACME)
    assert budgets.over(tenant, NOON) is None, "no worker was asked"
    budgets.end(ACME)
    budgets.add(replace(used(NOON, 1), requests=2))
    assert budgets.over(tenant, NOON)


@pytest.mark.parametrize(
    ("period", "now", "start", "end"),
    [
        (Period.DAY, "2027-02-28T23:59:59", "2027-02-28", "2027-03-01"),
        (Period.DAY, "2028-02-29", "2028-02-29", "2028-03-01"),
        (Period.MONTH, "2027-12-31T23:59:59", "2027-12-01", "2028-01-01"),
        (Period.MONTH, "2028-02-01", "2028-02-01", "2028-03-01"),
    ],
)
def test_periods_are_those_of_the_calendar_of_utc(period: Period, now: str, start: str, end: str) -> None:
    assert (period_start(period, at(now)), period_end(period, at(now))) == (at(start), at(end))


@given(
    st.lists(st.tuples(st.integers(0, 40 * 24), st.integers(0, 100)), max_size=30),
    st.integers(1, 400),
    st.sampled_from([(Limit.SPEND_PER_MONTH, Period.MONTH), (Limit.TOKENS_PER_DAY, Period.DAY)]),
)
def test_a_limit_is_reached_when_the_plain_account_says_so(
    uses: list[tuple[int, int]], most: int, limited: tuple[Limit, Period]
) -> None:
    (limit, period), spends = limited, limited[0] is Limit.SPEND_PER_MONTH
    tenant = TenantRecord(name=ACME, **{limit: most})  # type: ignore[arg-type]
    budgets, now = Budgets(), float(at("2027-01-20"))
    budgets.watch([tenant, TenantRecord(name=UMBRELLA)])
    account = list[tuple[float, int]]()
    for hours, count in sorted(uses):
        now = at("2027-01-20") + hours * HOUR + 0.5
        budgets.add(used(now, 0 if spends else count, charged=count if spends else 0))
        budgets.add(used(now, count, tenant=UMBRELLA))
        account.append((now, count))
        total = sum(count for when, count in account if when >= period_start(period, now))
        over = budgets.over(tenant, now)
        assert (over is not None) == (total >= most)
        if over is not None:
            assert over == (limit, period_end(period, now) - int(now))
            assert budgets.over(tenant, now + over[1]) is None, "a new period begins with nothing"
    assert budgets.over(TenantRecord(name=UMBRELLA, tokens_per_day=1), now) is None, "who was not limited is not kept"


def test_of_two_limits_the_one_that_holds_longer_is_told() -> None:
    tenant, budgets = TenantRecord(name=ACME, tokens_per_day=5, tokens_per_month=5), Budgets()
    budgets.watch([tenant])
    budgets.add(used(NOON, 5))
    assert budgets.over(tenant, NOON) == (Limit.TOKENS_PER_MONTH, at("2027-04-01") - NOON)


def test_a_key_is_held_to_its_own_limits_by_its_own_use() -> None:
    key = KeyRecord(id="1", tenant=ACME, hash="h", hint="cf-", created=0.0, tokens_per_day=5, tokens_per_month=50)
    plain, budgets = replace(key, id="2", tokens_per_day=None, tokens_per_month=None), Budgets()
    assert (key.budget_name, plain.budget_name) == ("acme/1", "")
    assert budgets.watch([key, plain, TenantRecord(name=ACME)])
    assert budgets.names == ("acme/1",)
    budgets.add(used(NOON, 1000))
    budgets.add(replace(used(NOON, 4), key="acme/1"))
    assert budgets.over(key, NOON) is None
    assert budgets.rooms(key, NOON) == Rooms(tokens=Room(5, 1, period_end(Period.DAY, NOON) - NOON))
    budgets.add(replace(used(NOON, 1), key="acme/1"))
    assert budgets.over(key, NOON) == (Limit.TOKENS_PER_DAY, period_end(Period.DAY, NOON) - NOON)
    assert budgets.over(plain, NOON) is None


class Replica:
    """The parts of a replica that count usage, on a store that it shares with others."""

    def __init__(self, database: Database) -> None:
        self.now, self.metrics, self.budgets = float(NOON), Metrics(), Budgets(informed=False)
        self.sql = SqlUsage(database)
        bounds = UsageBounds(flush_seconds=3600, answer_seconds=5)
        self.usage = UsageLog(self.sql, metrics=self.metrics, wall_clock=lambda: self.now, bounds=bounds)
        self.tenants = Tenants(SqlTenants(database), metrics=self.metrics)
        self.keeper = BudgetKeeper(
            self.budgets, self.tenants, self.usage, metrics=self.metrics, wall_clock=lambda: self.now
        )

    def use(self, tokens: int, when: float = NOON, charged: int = 0) -> None:
        """As where a request has ended."""
        record = used(when, tokens, charged=charged)
        self.usage.record(record)
        self.budgets.add(record)

    def totals(self) -> tuple[Totals, Totals]:
        day, month = [self.budgets._held[ACME].periods[period].of(self.now) for period in Period]
        return day, month


@pytest.fixture
def replicas(database: Database) -> Iterator[tuple[Replica, Replica]]:
    made = Replica(database), Replica(database)
    yield made
    for one in made:
        one.usage._thread.shutdown()
        one.tenants._thread.shutdown()


async def limited(replica: Replica) -> TenantRecord:
    """A tenant with limits, which that replica knows."""
    tenant = TenantRecord(name=ACME, tokens_per_day=100, spend_per_month=1000)
    await replica.tenants.change(lambda: replica.tenants._repository.create(tenant))  # type: ignore[attr-defined]
    return tenant


async def test_a_new_replica_knows_what_was_used_in_the_day_and_month(replicas: tuple[Replica, Replica]) -> None:
    first, second = replicas
    first.sql.open()
    first.sql.add([used(at(day), 10, charged=1) for day in ("2027-02-28T23:00", "2027-03-01", "2027-03-14T23:00")])
    first.sql.add([used(NOON - hours * HOUR, 10, charged=1) for hours in (0, 1, 5, 12)])
    first.sql.add([used(NOON, 10**6, tenant=UMBRELLA)])
    tenant = await limited(first)
    await second.tenants.refresh()
    await second.keeper.refresh()
    assert second.totals() == (totals(4, 40, 4), totals(6, 60, 6))
    assert second.budgets.over(tenant, NOON) is None
    second.use(60)
    assert second.budgets.over(tenant, NOON) == (Limit.TOKENS_PER_DAY, at("2027-03-16") - NOON)


async def test_replicas_know_of_each_other_and_count_nothing_twice(replicas: tuple[Replica, Replica]) -> None:
    first, second = replicas
    tenant = await limited(first)
    await second.tenants.refresh()
    for turn in range(1, 5):
        first.use(7, charged=3)
        second.use(5)
        for one in (first, second, first):
            await one.keeper.refresh()
            await one.keeper.refresh()
        assert first.totals() == second.totals() == (totals(2 * turn, 12 * turn, 3 * turn),) * 2
    first.use(100)
    assert first.budgets.over(tenant, NOON)
    await first.keeper.refresh()
    await second.keeper.refresh()
    assert second.budgets.over(tenant, NOON)


async def test_what_is_used_while_the_store_is_asked_counts_once(
    replicas: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = replicas
    await limited(first)
    inner = first.usage.spent

    async def meanwhile(*args: object, **kwargs: object) -> object:
        first.use(1)
        asking = asyncio.create_task(inner(*args, **kwargs))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        first.use(1)
        writing = asyncio.create_task(first.usage.flush())
        found = await asking
        await writing
        return found

    monkeypatch.setattr(first.usage, "spent", meanwhile)
    for turn in range(1, 4):
        await first.keeper.refresh()
        assert first.totals()[0].tokens == 2 + 2 * turn, "the hours before are read the first time alone"


async def test_while_the_store_fails_what_was_known_counts_on(
    replicas: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = replicas
    tenant = await limited(first)
    first.use(60)
    await first.keeper.refresh()

    def fail(*_: object, **__: object) -> None:
        raise StoreError("unavailable", "the database is gone")

    with monkeypatch.context() as patched:
        patched.setattr(first.sql, "spent", fail)
        first.use(40)
        await first.keeper.refresh()
        assert first.keeper.problem == "the database is gone"
        assert first.budgets.over(tenant, NOON)
        assert first.budgets.informed.is_set()
    await first.keeper.refresh()
    assert (first.keeper.problem, first.totals()[0].tokens) == ("", 100)


async def test_a_new_limit_counts_at_once_what_was_used_before_it(replicas: tuple[Replica, Replica]) -> None:
    first, _ = replicas
    first.use(100)
    await first.tenants.refresh()
    async with task(first.keeper.run()):
        await until(first.budgets.informed.is_set)
        tenant = await limited(first)
        await until(lambda: first.budgets.over(tenant, NOON) is not None)
