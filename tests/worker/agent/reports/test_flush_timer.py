"""When changes are reported: soon after one that comes alone, and seldom while they keep coming."""

import asyncio

from cachefleet_worker.agent.reports.flush_timer import FRAME_SECONDS, FlushTimer

SOON = 0.02
EARLY = 0.002
"""Timers of event loops have a resolution."""


class Flushes:
    """When there was one, on the loop's clock."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.timer = FlushTimer(self._flush, delta_seconds=SOON)

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
