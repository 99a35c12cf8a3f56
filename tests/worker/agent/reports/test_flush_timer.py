"""When changes are reported: soon where one comes alone, seldom while they keep coming, at once of many removals."""

import asyncio

import pytest

from cachefleet_worker.agent.reports.flush_timer import FRAME_SECONDS, MOST_REMOVED, SOONEST_SECONDS, FlushTimer

SOON = 0.02
EARLY = 0.002
"""Timers of event loops have a resolution."""


class Flushes:
    """When there was one, on the loop's clock."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.removed = 0.0
        self.timer = FlushTimer(self._flush, delta_seconds=SOON, removed=lambda: self.removed)

    def _flush(self) -> None:
        self.at.append(asyncio.get_running_loop().time())

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]


async def test_a_change_that_comes_alone_is_reported_soon() -> None:
    flushes, began = Flushes(), asyncio.get_running_loop().time()
    flushes.timer.changed()
    await asyncio.sleep(2 * FRAME_SECONDS)
    [at] = flushes.at
    assert SOON - EARLY <= at - began < FRAME_SECONDS


async def test_changes_that_keep_coming_share_frames() -> None:
    flushes = Flushes()
    for _ in range(50):
        flushes.timer.changed()
        await asyncio.sleep(0.01)
    await asyncio.sleep(FRAME_SECONDS)
    assert len(flushes.at) >= 3
    assert min(flushes.gaps) >= FRAME_SECONDS - EARLY


async def test_the_last_of_many_changes_is_reported_too() -> None:
    flushes = Flushes()
    flushes.timer.changed()
    await asyncio.sleep(2 * SOON)
    flushes.timer.changed()
    last = asyncio.get_running_loop().time()
    await asyncio.sleep(2 * FRAME_SECONDS)
    assert flushes.at[-1] > last


async def test_a_flush_that_is_asked_for_takes_the_place_of_the_one_that_is_due() -> None:
    flushes = Flushes()
    flushes.timer.changed()
    flushes.timer.flush_now()
    assert len(flushes.at) == 1
    await asyncio.sleep(2 * SOON)
    assert len(flushes.at) == 1


async def test_where_many_blocks_are_removed_a_flush_that_is_due_comes_at_once() -> None:
    flushes = Flushes()
    flushes.timer.changed()
    flushes.removed = 2 * MOST_REMOVED
    flushes.timer.changed()
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(flushes.at) == 1
    await asyncio.sleep(2 * FRAME_SECONDS)
    assert len(flushes.at) == 1


@pytest.mark.parametrize(
    ("removed", "after"), [(0.0, FRAME_SECONDS), (MOST_REMOVED, FRAME_SECONDS), (0.1, SOONEST_SECONDS)]
)
async def test_a_flush_follows_another_sooner_where_many_blocks_are_removed(removed: float, after: float) -> None:
    flushes = Flushes()
    flushes.timer.flush_now()
    flushes.removed, at = removed, flushes.timer.flushed_at
    assert flushes.timer.due(at + SOONEST_SECONDS / 2) == at + after
    assert flushes.timer.due(at + 1) == at + 1 + (0 if removed == 0.1 else SOON)
