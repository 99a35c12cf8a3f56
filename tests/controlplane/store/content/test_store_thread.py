"""The way to the store: bounded in time and number, and never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from cachefleet_controlplane.gateway.converse.checkpoint_repository import SqlContinuations, pruning
from cachefleet_controlplane.gateway.converse.conversation_metrics import ContinuationMetrics
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.content.store_thread import StoreThread, StoreThreadBounds
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.store_errors import StoreError
from tests.controlplane.waiting import task, until, value


class Failing(SqlContinuations):
    """Fails every other time that it is to forget something."""

    pruned = 0

    def prune(self, *, now: float, max_responses: int, max_conversations: int) -> int:
        self.pruned += 1
        if self.pruned % 2:
            raise StoreError("full", "disk full")
        return super().prune(now=now, max_responses=max_responses, max_conversations=max_conversations)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlContinuations]:
    database = Database(f"sqlite:///{tmp_path / 'c.db'}", timeout_seconds=5)
    yield SqlContinuations(database)
    database.close()


def booked(store: SqlContinuations, metrics: Metrics, clock: Clock, **bounds: float) -> StoreThread[SqlContinuations]:
    made = StoreThreadBounds(**({"answer_seconds": 30.0} | bounds))  # type: ignore[arg-type] # all are numbers
    return StoreThread(
        *(store, "conversations"),
        failed=ContinuationMetrics(metrics).store_failed,
        prune=pruning(20_000, 100_000),
        bounds=made,
        clock=clock,
    )


async def test_what_takes_too_long_is_left_to_itself(store: SqlContinuations) -> None:
    metrics, clock, go = Metrics(), Clock(), Event()
    store_thread = booked(store, metrics, clock, answer_seconds=0.05)
    with pytest.raises(StoreError, match="in time"):
        await store_thread.ask("commit", lambda _: go.wait(60))
    assert value(metrics, "continuation_store_failures_total", operation="commit") == 1
    go.set()
    clock.now = 2.0
    await until(lambda: store_thread._waiting == 0)
    assert await booked(store, Metrics(), clock).ask("lookup", lambda _: 7) == 7


async def test_a_store_that_failed_is_left_alone_for_a_while(store: SqlContinuations) -> None:
    metrics, clock, asked = Metrics(), Clock(), []
    store_thread = booked(store, metrics, clock)

    def broken(_: SqlContinuations) -> None:
        asked.append(1)
        raise StoreError("full", "disk full")

    for _ in range(3):
        with pytest.raises(StoreError, match="disk full"):
            await store_thread.ask("commit", broken)
    assert (len(asked), store_thread.problem) == (1, "disk full")
    clock.now = 1.0
    assert await store_thread.ask("lookup", lambda _: 7) == 7
    assert store_thread.problem == ""


async def test_only_so_much_may_wait(store: SqlContinuations) -> None:
    metrics, clock, go = Metrics(), Clock(), Event()
    store_thread = booked(store, metrics, clock, waiting=1)
    async with task(_ask(store_thread, go)):
        await until(lambda: store_thread._waiting == 1)
        with pytest.raises(StoreError, match="too much"):
            await store_thread.ask("lookup", lambda _: 7)
        go.set()
        await until(lambda: store_thread._waiting == 0)


async def test_what_nobody_foresaw_is_a_failure_of_the_store(store: SqlContinuations) -> None:
    def broken(_: SqlContinuations) -> None:
        raise ZeroDivisionError

    with pytest.raises(StoreError, match="ZeroDivisionError"):
        await booked(store, Metrics(), Clock()).ask("commit", broken)


async def test_after_its_end_there_is_no_store(store: SqlContinuations) -> None:
    store_thread = booked(store, Metrics(), Clock())
    async with task(store_thread.run()):
        assert await store_thread.ask("lookup", lambda _: 7) == 7
    with pytest.raises(StoreError, match="closed"):
        await store_thread.ask("lookup", lambda _: 7)


async def test_pruning_goes_on_whatever_the_store_does(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'c.db'}", timeout_seconds=5)
    store = Failing(database)
    store_thread = booked(store, Metrics(), Clock(), prune_seconds=0.01, retry_seconds=0.0)
    async with task(store_thread.run()):
        await until(lambda: store.pruned > 3)
    database.close()


async def _ask(store_thread: StoreThread[SqlContinuations], go: Event) -> None:
    await store_thread.ask("commit", lambda _: go.wait(60))
    await asyncio.sleep(0)
