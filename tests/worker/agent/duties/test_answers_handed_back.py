from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cachefleet_worker.agent.duties.answers_handed_back import MAX_STAY_SECONDS, AnswersHandedBack
from cachefleet_worker.agent.engines.engine_errors import EngineError
from tests.controlplane.waiting import task
from tests.worker.agent.engines.memory_engine import MemoryEngine

pytestmark = pytest.mark.usefixtures("hurried")


class Asked(MemoryEngine):
    """When it was asked to give answers back, on the loop's clock; fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.asked: list[float] = []
        self._failures = failures

    async def hand_back(self) -> int:
        self.asked.append(asyncio.get_running_loop().time())
        if len(self.asked) <= self._failures:
            raise EngineError("it does not answer")
        return 1


@pytest.fixture
async def engine() -> Asked:
    return Asked()


@pytest.fixture
async def duty(engine: Asked) -> AsyncIterator[AnswersHandedBack]:
    made = AnswersHandedBack(engine)
    made.begin(able=True)
    async with task(made.run()):
        yield made


@pytest.mark.parametrize(("drain", "stay"), [(4.0, 1.0), (120.0, MAX_STAY_SECONDS)])
async def test_answers_are_given_back_after_a_part_of_the_drain(
    engine: Asked, duty: AnswersHandedBack, drain: float, stay: float
) -> None:
    began = asyncio.get_running_loop().time()
    duty.drains(drain)
    await asyncio.sleep(stay + 2)
    [asked] = engine.asked
    assert stay <= asked - began < stay + 1


async def test_an_engine_that_was_started_anew_meanwhile_keeps_its_answers(
    engine: Asked, duty: AnswersHandedBack
) -> None:
    duty.drains(4.0)
    await asyncio.sleep(0.5)
    duty.begin(able=True)
    await asyncio.sleep(3)
    assert engine.asked == []
    duty.drains(4.0)
    await asyncio.sleep(3)
    assert len(engine.asked) == 1


async def test_an_engine_that_cannot_is_not_asked(engine: Asked, duty: AnswersHandedBack) -> None:
    duty.begin(able=False)
    duty.drains(4.0)
    await asyncio.sleep(3)
    assert engine.asked == []


async def test_after_a_failure_the_next_drain_asks_again() -> None:
    engine = Asked(failures=1)
    duty = AnswersHandedBack(engine)
    duty.begin(able=True)
    async with task(duty.run()):
        for _ in range(2):
            duty.drains(4.0)
            await asyncio.sleep(3)
    assert len(engine.asked) == 2
