"""The audit log: nothing is changed or lost silently, whatever the store does."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.audit_log import AuditBounds, AuditLog
from cachefleet_controlplane.store.audit_records import ALL, AuditFilter, AuditRecord
from cachefleet_controlplane.store.audit_repository import SqlAudit
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.store_errors import StoreError
from tests.controlplane.conftest import KINDS, new_database
from tests.controlplane.waiting import task, until, value

NOW = 1_800_000_000.0
QUICK = AuditBounds(queue=5, days=2, rows=4, write_seconds=120, retry_seconds=0.01, prune_every=1)


def record(number: int, **changes: object) -> AuditRecord:
    made = AuditRecord(
        id=f"a{number}",
        at=NOW + number,
        username="kim",
        address="10.0.0.1",
        method="PUT",
        path="/routing",
        verb="update",
        resource="prefixcachepools/routing",
        status=200,
        change={"policy": "roundRobin"},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class Failing(SqlAudit):
    """A repository that fails while told to."""

    fault: StoreError | None = None

    def open(self) -> None:
        self._fail()
        super().open()

    def add(self, records: Sequence[AuditRecord]) -> None:
        self._fail()
        super().add(records)

    def _fail(self) -> None:
        if self.fault:
            raise self.fault


@pytest.fixture(params=KINDS)
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Failing]:
    with closing(Database(new_database(request.param, request, tmp_path), timeout_seconds=10)) as database:
        yield Failing(database)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def log(repository: Failing, metrics: Metrics) -> AuditLog:
    return AuditLog(repository, metrics=metrics, wall_clock=lambda: NOW, bounds=QUICK)


async def names(log: AuditLog, limit: int = 99, wanted: AuditFilter = ALL, *, before: str | None = None) -> list[str]:
    return [one.id for one in await log.recent(limit, wanted, before=before)]


async def test_what_is_recorded_is_stored_when_record_returns(log: AuditLog, repository: Failing) -> None:
    async with task(log.run()):
        await log.record(record(1))
        await log.record(record(2, change=None, made="/x"))
        assert log.waiting == 0
        assert repository.recent(9) == [record(2, change=None, made="/x"), record(1)]


async def test_while_the_store_is_away_records_wait_and_are_written_later(log: AuditLog, repository: Failing) -> None:
    repository.fault = StoreError("unavailable", "away")
    async with task(log.run()):
        async with asyncio.timeout(40):  # far less than write_seconds: who knows that it fails does not wait
            for number in range(3):
                await log.record(record(number))
        assert (log.waiting, log.problem) == (3, "away")
        repository.fault = None
        await until(lambda: log.waiting == 0)
        assert await names(log) == ["a2", "a1", "a0"]
        assert log.problem == ""


async def test_a_task_that_is_started_again_goes_on(log: AuditLog, repository: Failing) -> None:
    repository.fault = ValueError("nobody foresaw this")  # type: ignore[assignment]
    log.problem = "so that nobody waits"
    await log.record(record(1))
    with pytest.raises(ValueError, match="foresaw"):
        await log.run()
    repository.fault = None
    async with task(log.run()):
        await until(lambda: log.waiting == 0)
    assert repository.recent(9) == [record(1)]


async def test_beyond_the_bound_the_oldest_is_dropped_and_counted(
    log: AuditLog, repository: Failing, metrics: Metrics
) -> None:
    log.problem = "away"
    for number in range(QUICK.queue + 2):
        await log.record(record(number))
    assert log.waiting == QUICK.queue
    assert value(metrics, "audit_dropped_total") == 2


async def test_pages_join_those_that_wait_and_those_that_are_stored(log: AuditLog, repository: Failing) -> None:
    repository.open()
    repository.add([record(number) for number in range(4)])
    log.problem = "away"
    for number in range(4, 7):
        await log.record(record(number))
    assert await names(log, 2) == ["a6", "a5"]
    assert await names(log, 2, before="a5") == ["a4", "a3"]
    assert await names(log, 9, before="a3") == ["a2", "a1", "a0"]


async def test_filters(log: AuditLog, repository: Failing) -> None:
    repository.open()
    repository.add([record(1), record(2, username="sam"), record(3, resource="tenants")])
    assert await names(log, wanted=AuditFilter(username="sam")) == ["a2"]
    assert await names(log, wanted=AuditFilter(resource="tenants")) == ["a3"]
    in_time = AuditFilter(since=NOW + 2, until=NOW + 3)
    assert await names(log, wanted=in_time) == ["a2"]
    assert [number for number in (1, 2, 3) if in_time.matches(record(number))] == [2]


async def test_old_ones_and_those_beyond_the_bound_are_forgotten(log: AuditLog, repository: Failing) -> None:
    async with task(log.run()):
        await log.record(record(0, at=NOW - 3 * 86_400))
        for number in range(1, 8):
            await log.record(record(number))
        assert await names(log) == ["a7", "a6", "a5", "a4"]


def test_who_may_change_nothing_pushes_no_change_out(repository: Failing) -> None:
    """Anybody with a token can be refused, and a viewer can ask what would be decided, as often as they like."""
    repository.open()
    repository.add([record(0), *(record(number, status=403) for number in range(1, 30))])
    repository.add([record(number, verb="list", resource="decisions") for number in range(30, 60)])
    repository.prune(before=NOW, keep=20)
    left = [one.id for one in repository.recent(99)]
    assert left == ["a59", "a58", "a0"]
    repository.add([record(number) for number in range(60, 90)])
    repository.prune(before=NOW, keep=20)
    left = [one.id for one in repository.recent(99)]
    assert left == [*(f"a{number}" for number in range(89, 71, -1)), "a59", "a58"]


async def test_of_those_that_wait_what_changed_nothing_is_dropped_first(log: AuditLog) -> None:
    log.problem = "away"
    await log.record(record(0))
    for number in range(1, 9):
        await log.record(record(number, status=403))
    assert await names(log) == ["a8", "a7", "a6", "a5", "a0"]


def test_a_batch_that_was_written_and_is_written_again_is_there_once(repository: Failing) -> None:
    repository.open()
    repository.add([record(1)])
    repository.add([record(1, status=500), record(2)])
    repository.add([record(2)])
    assert repository.recent(9) == [record(2), record(1)]
