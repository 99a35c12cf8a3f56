"""What tenants used: sums in real SQLite and PostgreSQL, and the log that writes them."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.hour_ages import HOURS_SEEN
from cachefleet_controlplane.store.schema.tables import UsageRow
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import Totals, UsageRecord
from cachefleet_controlplane.store.usage_log import SqlUsage, UsageBounds, UsageLog
from cachefleet_core.tenancy import TenantId
from tests.controlplane.waiting import task, until, value

HOUR = 3600
NOW = 400_000 * HOUR
ACME, UMBRELLA = TenantId("acme"), TenantId("umbrella")
QUICK = UsageBounds(queue=4, flush_seconds=0.01, days=2)


def used(hour: int = 400_000, tenant: TenantId = ACME, model: str = "m", requests: int = 1) -> UsageRecord:
    return UsageRecord(
        hour=hour * HOUR,
        tenant=tenant,
        model=model,
        requests=requests,
        prompt_tokens=100 * requests,
        cached_tokens=60 * requests,
        completion_tokens=7 * requests,
    )


class Faulty(SqlUsage):
    """Fails as told when it is to add."""

    fault: Exception | None = None

    def add(self, records: Sequence[UsageRecord]) -> None:
        if self.fault is not None:
            raise self.fault
        super().add(records)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def repository(database: Database) -> Faulty:
    repository = Faulty(database)
    repository.open()
    return repository


@pytest.fixture
def log(repository: Faulty, metrics: Metrics) -> Iterator[UsageLog]:
    """Its thread has ended before the database is closed."""
    made = UsageLog(repository, metrics=metrics, wall_clock=lambda: NOW, bounds=QUICK)
    yield made
    made._thread.shutdown()


def everything(repository: SqlUsage) -> list[UsageRecord]:
    return repository.between(0, 2**62, limit=1000)


def test_rows_have_exactly_the_fields_of_records() -> None:
    assert {*UsageRow.model_fields, "key"} == {field.name for field in fields(UsageRecord)}


def test_what_is_added_is_added_up(repository: Faulty) -> None:
    repository.add([used(), used(tenant=UMBRELLA)])
    repository.add([used(requests=2), used(model="n"), used(hour=400_001)])
    assert everything(repository) == [
        used(requests=3),
        used(model="n"),
        used(tenant=UMBRELLA),
        used(hour=400_001),
    ]


def test_numbers_outgrow_32_bits(repository: Faulty) -> None:
    repository.add([used(requests=2**40)])
    repository.add([used(requests=2**40)])
    assert everything(repository) == [used(requests=2**41)]


def test_hours_are_asked_for_from_until_by_tenant_and_up_to_a_number(repository: Faulty) -> None:
    repository.add([used(hour=hour, tenant=tenant) for hour in range(1, 5) for tenant in (ACME, UMBRELLA)])
    assert [one.hour // HOUR for one in repository.between(2 * HOUR, 4 * HOUR, tenant=ACME, limit=9)] == [2, 3]
    assert len(repository.between(2 * HOUR, 4 * HOUR, limit=9)) == 4
    assert repository.between(0, 9 * HOUR, limit=1) == [used(hour=1)]


async def test_what_a_key_used_is_in_its_tenants_sums_once(log: UsageLog, repository: Faulty) -> None:
    own = [
        replace(used(), key="acme/1"),
        replace(used(model="n"), key="acme/1"),
        replace(used(requests=2), key="acme/2"),
    ]
    repository.add([*own, used(), used(tenant=UMBRELLA)])
    assert everything(repository) == [used(requests=4), used(model="n"), used(tenant=UMBRELLA)]
    log.record(replace(used(), key="acme/1"))
    log.record(used())
    names = ["acme", "acme/1", "acme/2", "acme/3", "umbrella"]
    for _ in range(2):
        found = await log.spent(names, start=0, end=2**62, day=0)
        requests = {"acme": 7, "acme/1": 3, "acme/2": 2, "umbrella": 1}
        expected = {name: Totals(number, 40 * number, 60 * number, 7 * number) for name, number in requests.items()}
        assert {name: totals for (name, _), totals in found.items()} == expected
        await log.flush()
    assert repository.prune(400_001 * HOUR, kept_seconds=0) == 3
    assert await log.spent(names, start=0, end=2**62, day=0) == {}


async def test_a_log_sums_up_and_writes_soon(log: UsageLog, repository: Faulty) -> None:
    async with task(log.run()):
        for _ in range(3):
            log.record(used())
        log.record(used(tenant=UMBRELLA))
        await until(lambda: everything(repository) == [used(requests=3), used(tenant=UMBRELLA)])


async def test_what_waits_is_written_at_the_end(repository: Faulty, metrics: Metrics) -> None:
    log = UsageLog(repository, metrics=metrics, wall_clock=lambda: NOW, bounds=UsageBounds(flush_seconds=3600))
    async with task(log.run()):
        await asyncio.sleep(0)
        log.record(used())
    assert everything(repository) == [used()]


async def test_who_asks_sees_what_was_used_by_then(log: UsageLog) -> None:
    log.record(used())
    assert await log.between(0, NOW + 1, limit=9) == [used()]
    log.record(used())
    assert await log.between(0, NOW + 1, tenant=ACME, limit=9) == [used(requests=2)]
    assert await log.between(0, NOW + 1, tenant=UMBRELLA, limit=9) == []


async def test_while_the_store_fails_sums_wait_and_none_is_counted_twice(
    log: UsageLog, repository: Faulty, metrics: Metrics
) -> None:
    async with task(log.run()):
        repository.fault = StoreError("locked", "database locked")
        log.record(used())
        await until(lambda: log.problem == "database locked")
        log.record(used())
        with pytest.raises(StoreError):
            await log.between(0, NOW + 1, limit=9)
        assert value(metrics, "store_errors_total", kind="locked") >= 1
        repository.fault = None
        await until(lambda: everything(repository) == [used(requests=2)])
        await until(lambda: not log.problem)
    assert everything(repository) == [used(requests=2)]


async def test_beyond_the_queue_new_sums_are_dropped_and_counted(log: UsageLog, metrics: Metrics) -> None:
    for number in range(QUICK.queue + 2):
        log.record(used(model=f"m{number}"))
    log.record(used(model="m0"))
    assert len(await log.between(0, NOW + 1, limit=99)) == QUICK.queue
    assert value(metrics, "usage_dropped_total") == 2


async def test_what_cannot_be_written_does_not_hold_up_what_follows(
    log: UsageLog, repository: Faulty, metrics: Metrics
) -> None:
    repository.fault = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
    log.record(used(requests=5))
    await log.flush()
    repository.fault = None
    log.record(used())
    await log.flush()
    assert everything(repository) == [used()]
    assert value(metrics, "usage_dropped_total") == 5
    assert value(metrics, "task_errors_total", task="usage") == 1


async def test_who_leaves_while_it_is_written_has_it_written_once(log: UsageLog, repository: Faulty) -> None:
    log.record(used())
    asking = asyncio.create_task(log.flush())
    await asyncio.sleep(0)  # the task of the writing is made, and this one waits for it
    asking.cancel()
    await asyncio.wait({asking})
    await log.flush()
    assert everything(repository) == [used()]


async def test_a_store_that_answers_nothing_holds_up_neither_who_asks_nor_the_end(
    database: Database, metrics: Metrics
) -> None:
    release = threading.Event()

    class Hanging(SqlUsage):
        def add(self, records: Sequence[UsageRecord]) -> None:
            release.wait(60)

    bounds = UsageBounds(flush_seconds=3600, answer_seconds=0.05)
    log = UsageLog(Hanging(database), metrics=metrics, wall_clock=lambda: NOW, bounds=bounds)
    async with asyncio.timeout(30), task(log.run()):
        log.record(used())
        with pytest.raises(StoreError, match="in time"):
            await log.between(0, NOW + 1, limit=9)
    release.set()
    log._thread.shutdown()


async def test_old_hours_are_forgotten(log: UsageLog, repository: Faulty) -> None:
    recent = [used(hour=400_000 - more) for more in range(HOURS_SEEN)]
    repository.add([used(hour=400_000 - 49), used(hour=400_000 - 48), *recent])
    await log.flush()
    assert [one.hour // HOUR for one in everything(repository)][:2] == [400_000 - 48, 400_000 - HOURS_SEEN + 1]


async def test_a_clock_that_is_far_ahead_has_no_hour_forgotten(repository: Faulty, metrics: Metrics) -> None:
    now = int(time.time()) // HOUR
    repository.add([used(hour=now - 20), used(hour=now)])
    ahead = UsageLog(repository, metrics=metrics, wall_clock=lambda: (now + 10_000) * HOUR, bounds=QUICK)
    ahead.record(used(hour=now + 10_000))
    await ahead.flush()
    ahead._thread.shutdown()
    assert [one.hour // HOUR for one in everything(repository)] == [now - 20, now, now + 10_000]
