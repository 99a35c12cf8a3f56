"""A task that is started again where it ends."""

import asyncio

import pytest

from cachefleet_runtime.tasks import BackgroundTasks, restarting


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


async def test_background_tasks_end_by_themselves_and_a_failure_is_told(caplog: pytest.LogCaptureFixture) -> None:
    failures = 0

    def failed() -> None:
        nonlocal failures
        failures += 1

    async def broken() -> None:
        raise ValueError("broken for a test")

    tasks = BackgroundTasks("a comparison", failed=failed)
    tasks.start(asyncio.sleep(0))
    tasks.start(broken())
    assert len(tasks) == 2
    await tasks.settled()
    assert (len(tasks), failures) == (0, 1)
    assert "a comparison failed unexpectedly" in caplog.text


async def test_background_tasks_that_are_cancelled_are_no_failures() -> None:
    tasks = BackgroundTasks("a wait", failed=lambda: pytest.fail("told"))
    tasks.start(asyncio.sleep(3600))
    tasks.cancel()
    await tasks.settled()
    assert not len(tasks)
