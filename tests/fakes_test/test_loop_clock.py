"""Waiting is quick by a loop's hurried clock; nothing else is."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.fakes.loop_clock import clock, hurried


@pytest.mark.usefixtures("hurried")
async def test_timers_come_in_their_order_at_their_time_and_soon() -> None:
    began, really = clock(), time.monotonic()
    rung: list[tuple[str, float]] = []

    async def ring(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        rung.append((name, clock() - began))

    await asyncio.gather(ring("late", 20), ring("early", 5))
    assert time.monotonic() - really < 20
    assert [name for name, _ in rung] == ["early", "late"]
    assert [at >= seconds for (_, at), seconds in zip(rung, (5, 20), strict=True)] == [True, True]


@pytest.mark.usefixtures("hurried")
async def test_a_thread_that_works_for_the_loop_has_the_time_it_needs() -> None:
    async with asyncio.timeout(5):  # by the hurried clock a tenth of a second
        await asyncio.to_thread(time.sleep, 0.3)  # longer than that


async def test_what_was_gained_stays_gained() -> None:
    with hurried(asyncio.get_running_loop()):
        await asyncio.sleep(30)
        after = clock()
    assert clock() >= after
    assert clock() - time.monotonic() > 10
