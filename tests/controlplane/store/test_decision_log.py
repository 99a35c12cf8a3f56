"""The log: never waits, never loses silently, lives through its repository's faults."""

import dataclasses
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import cast

import pytest
from msgspec import Raw, json
from msgspec.structs import replace

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_filter import EVERY, DecisionFilter
from cachefleet_controlplane.store.decision_log import DecisionLog, LogBounds
from cachefleet_controlplane.store.decision_records import CandidateRecord, DecisionRecord
from cachefleet_controlplane.store.decision_repository import DecisionRepository, SqlDecisions
from cachefleet_controlplane.store.store_errors import StoreError
from tests.controlplane.store.conftest import MakeRecord
from tests.controlplane.waiting import task, until, value
from tests.fakes.decisions import InMemoryDecisions

QUICK = LogBounds(queue=8, batch=3, flush_seconds=0.0, retry_seconds=0.01, read_seconds=0.5, prune_every=4)


class Failing(InMemoryDecisions):
    """A repository whose next calls fail as told."""

    def __init__(self, *, max_rows: int = 100) -> None:
        super().__init__(max_rows=max_rows)
        self.fault: Exception | None = None
        self.opened = 0

    def open(self) -> None:
        self._fail()
        self.opened += 1

    def save(self, records: Sequence[DecisionRecord]) -> None:
        self._fail()
        super().save(records)

    def recent(self, limit: int, wanted: DecisionFilter = EVERY, *, before: str | None = None) -> list[DecisionRecord]:
        self._fail()
        return super().recent(limit, wanted, before=before)

    def get(self, decision_id: str) -> DecisionRecord | None:
        self._fail()
        return super().get(decision_id)

    def _fail(self) -> None:
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def new_log(repository: DecisionRepository, metrics: Metrics) -> DecisionLog:
    return DecisionLog(repository, metrics=metrics, bounds=QUICK)


@asynccontextmanager
async def running(log: DecisionLog) -> AsyncIterator[DecisionLog]:
    async with task(log.run()):
        yield log


async def test_records_are_seen_at_once_and_written_soon(metrics: Metrics, make: MakeRecord) -> None:
    repository = InMemoryDecisions(max_rows=100)
    async with running(new_log(repository, metrics)) as log:
        for number in range(7):
            log.record(make(number))
        assert await log.get("d3") == make(3)
        assert [r.id for r in await log.recent(2)] == ["d6", "d5"]
        await until(lambda: repository.get("d6") is not None)
        assert [r.id for r in await log.recent(99)] == [f"d{n}" for n in range(6, -1, -1)]
    assert value(metrics, "store_records_total") == 7
    assert value(metrics, "store_up") == 1


@dataclasses.dataclass
class Later:
    """A record that notes which threads make it."""

    record: DecisionRecord
    written: DecisionRecord
    makers: list[int] = dataclasses.field(default_factory=list)

    @property
    def id(self) -> str:
        return self.record.id

    def made(self) -> DecisionRecord:
        self.makers.append(threading.get_ident())
        return self.record

    def stored(self) -> DecisionRecord:
        self.makers.append(threading.get_ident())
        return self.written


async def test_a_record_is_made_by_who_writes_it_or_looks_at_it(metrics: Metrics, make: MakeRecord) -> None:
    repository, records = InMemoryDecisions(max_rows=100), [Later(make(number), make(number)) for number in (1, 2)]
    log = new_log(repository, metrics)
    for later in records:
        log.record(later)
    assert [later.makers for later in records] == [[], []]
    assert await log.get("d2") == make(2)
    async with running(log):
        await until(lambda: repository.get("d1") is not None)
    here = threading.get_ident()
    assert [[who == here for who in later.makers] for later in records] == [[False], [True, False]]


async def test_full_batches_do_not_wait(metrics: Metrics, make: MakeRecord) -> None:
    repository = InMemoryDecisions(max_rows=100)
    slow = dataclasses.replace(QUICK, flush_seconds=600)
    async with running(DecisionLog(repository, metrics=metrics, bounds=slow)) as log:
        await until(lambda: not log.problem)
        for number in range(7):
            log.record(make(number))
        await until(lambda: repository.get("d5") is not None)
        assert repository.get("d6") is None
    assert value(metrics, "store_records_total") == 7


async def test_stopping_writes_what_still_waits(metrics: Metrics, make: MakeRecord) -> None:
    repository = InMemoryDecisions(max_rows=100)
    patient = dataclasses.replace(QUICK, retry_seconds=30)  # which is also how long the last writing may take
    async with running(DecisionLog(repository, metrics=metrics, bounds=patient)) as log:
        await until(lambda: not log.problem)
        for number in range(8):
            log.record(make(number))
    assert len(repository.recent(99)) == 8


async def test_the_latest_of_one_id_wins_while_it_waits_and_after(metrics: Metrics, make: MakeRecord) -> None:
    repository = InMemoryDecisions(max_rows=100)
    async with running(new_log(repository, metrics)) as log:
        log.record(make(1))
        log.record(make(1, cached=10))
        await until(lambda: repository.get("d1") is not None)
        log.record(make(1, cached=20))
        assert [r.cached_tokens for r in await log.recent(9)] == [20]


async def test_beyond_the_queue_the_oldest_are_dropped_and_counted(metrics: Metrics, make: MakeRecord) -> None:
    log = new_log(InMemoryDecisions(max_rows=100), metrics)
    for number in range(QUICK.queue + 3):
        log.record(make(number))
    assert [await log.get(f"d{n}") is None for n in range(4)] == [True, True, True, False]
    assert (await log.recent(1))[0].id == f"d{QUICK.queue + 2}"
    assert value(metrics, "store_dropped_total") == 3


async def test_a_failing_repository_is_told_and_tried_again(metrics: Metrics, make: MakeRecord) -> None:
    repository = Failing()
    async with running(new_log(repository, metrics)) as log:
        await until(lambda: not log.problem)
        repository.fault = StoreError("full", "database full")
        log.record(make(1))
        await until(lambda: bool(log.problem))
        assert log.problem == "database full"
        assert value(metrics, "store_up") == 0
        assert value(metrics, "store_errors_total", kind="full") >= 1
        assert [r.id for r in await log.recent(9)] == ["d1"]
        repository.fault = None
        await until(lambda: repository.get("d1") is not None)
        await until(lambda: not log.problem)
    assert repository.opened >= 2


async def test_a_store_that_does_not_open_at_start_is_no_reason_to_stop(metrics: Metrics, make: MakeRecord) -> None:
    repository = Failing()
    repository.fault = StoreError("unavailable", "no such disk")
    async with running(new_log(repository, metrics)) as log:
        log.record(make(1))
        await until(lambda: log.problem == "no such disk")
        assert await log.get("d1") == make(1)
        with pytest.raises(StoreError):
            await log.get("d2")
        repository.fault = None
        await until(lambda: repository.get("d1") is not None)


async def test_records_that_cannot_be_written_do_not_hold_up_others(metrics: Metrics, make: MakeRecord) -> None:
    repository = Failing()
    async with running(new_log(repository, metrics)) as log:
        await until(lambda: not log.problem)
        repository.fault = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        log.record(make(1))
        await until(lambda: value(metrics, "store_dropped_total") == 1)
        repository.fault = None
        log.record(make(2))
        await until(lambda: repository.get("d2") is not None)
    assert value(metrics, "task_errors_total", task="store") == 1


async def test_an_error_nobody_foresaw_is_survived(metrics: Metrics, make: MakeRecord) -> None:
    repository = Failing()
    repository.fault = RuntimeError("a bug")
    async with running(new_log(repository, metrics)) as log:
        await until(lambda: log.problem == "store: RuntimeError")
        repository.fault = None
        log.record(make(1))
        await until(lambda: repository.get("d1") is not None)
    assert value(metrics, "task_errors_total", task="store") >= 1


async def test_the_ring_is_pruned_while_it_runs(metrics: Metrics, make: MakeRecord) -> None:
    repository = InMemoryDecisions(max_rows=5)
    async with running(new_log(repository, metrics)) as log:
        for number in range(40):
            log.record(make(number))
            await until(lambda n=number: repository.get(f"d{n}") is not None)  # type: ignore[misc]
    assert len(repository.recent(99)) <= 5 + QUICK.prune_every


async def test_what_is_written_may_have_its_candidates_encoded(
    tmp_path: Path, metrics: Metrics, make: MakeRecord
) -> None:
    record = make(1)
    encoded = cast("tuple[CandidateRecord, ...]", Raw(json.encode(record.candidates)))
    with closing(Database(f"sqlite:///{tmp_path}/x.db", timeout_seconds=10)) as database:
        repository = SqlDecisions(database, max_rows=5)
        async with running(new_log(repository, metrics)) as log:
            log.record(Later(record, replace(record, candidates=encoded)))
            assert (await log.get("d1")) is record
            await until(lambda: value(metrics, "store_records_total") == 1)
            assert await log.get("d1") == record


async def test_a_read_that_hangs_is_given_up(metrics: Metrics) -> None:
    release = threading.Event()

    class Hanging(InMemoryDecisions):
        def get(self, decision_id: str) -> DecisionRecord | None:
            release.wait(5)
            return None

    log = new_log(Hanging(max_rows=5), metrics)
    with pytest.raises(StoreError, match="in time"):
        await log.get("d1")
    release.set()


def aside(folder: Path) -> int:
    return len(list(folder.glob("x.db.corrupt-*")))


async def test_a_real_file_corrupted_and_locked_under_a_running_log(
    tmp_path: Path, metrics: Metrics, make: MakeRecord
) -> None:
    file = tmp_path / "x.db"
    file.write_bytes(b"rubbish" * 1000)
    repository = SqlDecisions(Database(f"sqlite:///{file}", timeout_seconds=0.05), max_rows=50)
    async with running(new_log(repository, metrics)) as log:
        log.record(make(1))
        await until(lambda: value(metrics, "store_records_total") == 1)
        file.unlink()
        log.record(make(2))
        await until(lambda: value(metrics, "store_records_total") == 2)
        assert await log.get("d2") == make(2)
    assert value(metrics, "store_errors_total", kind="missing") == 1
    assert aside(tmp_path) == 1
