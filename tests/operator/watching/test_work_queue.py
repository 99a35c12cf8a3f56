import asyncio

import pytest

from cachefleet_operator.watching.work_queue import WorkQueue

pytestmark = pytest.mark.usefixtures("hurried")


def queue() -> WorkQueue[str]:
    return WorkQueue(first=0.01, longest=0.05)


async def test_a_name_waits_once() -> None:
    names = queue()
    for name in ("a", "b", "a"):
        names.add(name)
    assert len(names) == 2
    assert [await names.get(), await names.get()] == ["a", "b"]


async def test_two_never_work_on_one_name() -> None:
    names = queue()
    names.add("a")
    assert await names.get() == "a"
    names.add("a")
    assert len(names) == 0
    names.done("a", failed=False)
    assert await names.get() == "a"


async def test_a_failure_comes_back_and_an_event_comes_first() -> None:
    names = queue()
    names.add("a")
    names.done(await names.get(), failed=True)
    assert len(names) == 0
    assert await asyncio.wait_for(names.get(), 30) == "a"
    names.done("a", failed=True)
    names.add("a")
    assert len(names) == 1
    names.done(await names.get(), failed=False)
    await asyncio.sleep(0.06)  # longer than the pause that was cancelled
    assert len(names) == 0


async def test_closing_forgets_what_is_due() -> None:
    names = queue()
    names.add("a")
    names.done(await names.get(), failed=True)
    names.close()
    await asyncio.sleep(0.03)
    assert len(names) == 0


@pytest.mark.parametrize(("failures", "pause"), [(1, 0.01), (2, 0.02), (3, 0.04), (4, 0.05), (5000, 0.05)])
def test_the_pause_doubles_up_to_its_bound(failures: int, pause: float) -> None:
    assert queue().pause(failures) == pytest.approx(pause)


async def test_what_is_due_later_comes_then_or_before() -> None:
    names = queue()
    names.add("a")
    names.add_later(await names.get(), 0.02)
    names.add_later("a", 3600)
    names.done("a", failed=False)
    assert len(names) == 0
    assert await asyncio.wait_for(names.get(), 30) == "a"
    names.add_later("a", 3600)
    names.done("a", failed=True)
    assert await asyncio.wait_for(names.get(), 30) == "a"
    names.add_later("a", 3600)
    names.add("a")
    names.done("a", failed=False)
    assert len(names) == 1
    names.close()
