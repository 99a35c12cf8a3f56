"""Judgements over restarts and between replicas: nothing begins anew, and a store that fails loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cachefleet_controlplane.capacity.advice_records import AdviceRecords
from cachefleet_controlplane.capacity.capacity_report import CapacityReports
from cachefleet_controlplane.capacity.pool_reuse import PoolReuses
from cachefleet_controlplane.judgements.judgement_log import MOST_READ, JudgementLog
from cachefleet_controlplane.judgements.judgement_repository import SqlJudgements
from cachefleet_controlplane.store.content.store_thread import StoreThread, StoreThreadBounds
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.workers.views import FleetView
from tests.controlplane.cache_contracts.test_contract_records import CONTRACT, Watched
from tests.controlplane.capacity.test_capacity_report import KEY, asked, models, view
from tests.controlplane.fleet_views import fleet_view, worker_status

BOUNDS = StoreThreadBounds(answer_seconds=60, retry_seconds=0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'kept.db'}"


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], Database]]:
    """Databases as processes have them, of one file."""
    made: list[Database] = []

    def another() -> Database:
        made.append(Database(url, timeout_seconds=60))
        return made[-1]

    yield another
    for one in made:
        with closing(one):
            pass


class Sized:
    """A replica that is asked always the same of a pool, of a size of the test's choosing."""

    def __init__(self, shown: FleetView, now: float) -> None:
        self.shown, self.now, self.reuses = shown, now, PoolReuses()
        reports = CapacityReports(self.reuses, lambda: self.shown, models, clock=lambda: self.now)
        self.records = AdviceRecords(reports, clock=lambda: self.now)

    def looks(self, times: int, requests: int = 100) -> None:
        for _ in range(times):
            self.now += 60
            asked(self.reuses, requests, now=self.now)
            self.records.tick()


def log(database: Database, contracts: Watched | None = None, sized: Sized | None = None) -> JudgementLog:
    thread = StoreThread(SqlJudgements(database), "judgements", failed=_ignore, prune=lambda _: 0, bounds=BOUNDS)
    advice = (sized or Sized(view(), 0.0)).records
    judging = [advice.judged, *([contracts.records.judged] if contracts else [])]
    now = contracts.now if contracts else 1_800_000_000.0
    return JudgementLog(thread, judging, advice, clock=lambda: now)


def _ignore(_: str) -> None:
    """The thread logs it, too."""


def watched(at: float | None = None) -> tuple[Watched, Any]:
    """A replica whose one worker keeps a contract."""
    made = Watched(CONTRACT)
    if at is not None:
        made.now = at
        made.records.tick()
        made.records._minutes.clear()
        made.records.tick()
    worker = made.worker()
    made.says(worker, 20, 0)
    return made, worker


async def test_a_contract_does_not_begin_anew_with_its_replica(opened: Callable[[], Database]) -> None:
    before, worker = watched()
    kept = log(opened(), before)
    for evicted in (0, 0, 5):
        before.says(worker, 20, evicted)
        before.pass_minute()
    await kept.exchange()
    [shown] = before.records.states()
    assert (shown.hour.minutes, shown.hour.met_minutes, shown.hour.evicted_blocks) == (3, 2, 5)
    after, _ = watched(before.now + 120)
    again = log(opened(), after)
    await again.exchange()
    after.pass_minute()
    [shown] = after.records.states()
    assert (shown.hour.minutes, shown.hour.met_minutes, shown.hour.evicted_blocks) == (4, 3, 5)
    assert shown.hour.missed_minutes == {"evicted": 1}
    assert shown.month == shown.hour


async def test_any_number_of_contracts_is_read_at_once_in_small_parts(
    opened: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [CONTRACT | {"tenant": f"tenant-{number}", "share": 0.0625} for number in range(2 * MOST_READ + 1)]
    before = Watched(*named)
    before.says(before.worker(), 20, 0)
    before.pass_minute()
    database = opened()
    await log(database, before).exchange()
    after, read = Watched(*named), list[int]()
    exchange = SqlJudgements.exchange

    def counted(self: SqlJudgements, written: Any, unread: Any, **when: Any) -> Any:
        read.append(len(unread))
        return exchange(self, written, unread, **when)

    monkeypatch.setattr(SqlJudgements, "exchange", counted)
    await log(database, after).exchange()
    assert read == [MOST_READ, MOST_READ, 1]
    assert [one.judged.tally(0, 2**40).minutes for _, one in after.records.totals()] == [1] * len(named)


async def test_replicas_tell_the_same_and_a_minute_is_one_whoever_judged_it(opened: Callable[[], Database]) -> None:
    one, his = watched()
    other, hers = watched()
    logs = [log(opened(), each) for each in (one, other)]
    his_evicted, hers_evicted = (4, 4, 9), (0, 0, 9)
    for his_now, hers_now in zip(his_evicted, hers_evicted, strict=True):
        one.says(his, 20, his_now)
        other.says(hers, 20, hers_now)
        one.pass_minute()
        other.pass_minute()
    for each in (*logs, *logs):
        await each.exchange()
    [[first], [second]] = [each.records.states() for each in (one, other)]
    assert first.hour == second.hour
    assert (first.hour.minutes, first.hour.met_minutes) == (3, 1)


async def test_minutes_that_a_replica_writes_after_a_long_outage_reach_those_that_run(
    opened: Callable[[], Database],
) -> None:
    late, worker = watched()
    late.says(worker, 20, 5)
    late.pass_minute()
    other, _ = watched(late.now + 6 * 3600)
    running = log(opened(), other)
    await running.exchange()
    [before] = other.records.states()
    await log(opened(), late).exchange()
    await running.exchange()
    other.pass_minute()
    [shown] = other.records.states()
    assert before.month.missed_minutes == {}
    assert shown.month.missed_minutes == {"evicted": 1}


async def test_what_a_failing_store_did_not_take_is_written_when_it_works(
    opened: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = watched()
    sized = Sized(view(), before.now)
    kept = log(opened(), before, sized)
    await kept.exchange()
    before.pass_minute()
    sized.looks(3)
    sized.shown = fleet_view(worker_status("demo-0"))
    sized.looks(1)
    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", lambda *_, **__: 1 / 0)
        await kept.exchange()
    await kept.exchange()
    again, _ = watched(before.now)
    restarted = Sized(sized.shown, sized.now)
    restarted.looks(1)
    await log(opened(), again, restarted).exchange()
    again.pass_minute()
    assert again.records.states()[0].hour.minutes == 2
    record = restarted.records.of(KEY)
    assert record is not None
    assert record.changes.pending is not None


async def test_a_change_of_size_is_judged_though_the_replica_was_restarted(opened: Callable[[], Database]) -> None:
    sized = Sized(view(), 1_800_000_000.0)
    kept = log(opened(), sized=sized)
    sized.looks(2)
    sized.shown = fleet_view(worker_status("demo-0"))
    sized.looks(2)
    await kept.exchange()
    after = Sized(sized.shown, sized.now + 300)
    after.looks(1)
    again = log(opened(), sized=after)
    await again.exchange()
    after.looks(20)
    record = after.records.of(KEY)
    assert record is not None
    [judged] = record.changes.judged
    assert (judged.before.workers, judged.foretold.workers, judged.came_ratio) == (2, 1, 0.5)
    await again.exchange()
    third = Sized(sized.shown, after.now)
    third.looks(1)
    await log(opened(), sized=third).exchange()
    last = third.records.of(KEY)
    assert last is not None
    assert list(last.changes.judged) == [judged]


async def test_a_change_that_was_none_is_deleted(opened: Callable[[], Database]) -> None:
    sized = Sized(view(), 1_800_000_000.0)
    database = opened()
    kept = log(database, sized=sized)
    sized.looks(2)
    sized.shown = fleet_view(worker_status("demo-0"))
    sized.looks(1)
    await kept.exchange()
    store = SqlJudgements(database)
    assert len(store.changes(KEY)) == 1
    sized.shown = view()
    sized.looks(1)
    await kept.exchange()
    assert store.changes(KEY) == []
