"""A task that is started again where it ends."""

import asyncio

import pytest

from cachefleet_runtime.tasks import restarting


async def test_it_is_started_again_and_its_failures_are_told() -> None:
    runs, failed = 0, list[str]()
    enough = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 4:
            enough.set()
        if runs % 2:
            raise ValueError("broken for a test")

    task = asyncio.create_task(restarting("store", work, pause_seconds=0, failed=failed.append))
    await enough.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert failed == ["store", "store"]
