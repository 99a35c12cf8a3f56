"""An engine that refuses the worker key is told of after refusals in a row alone."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from cachefleet_worker.agent.engine_arrival import EngineArrival, KeyRefusedError
from cachefleet_worker.agent.engines.engine import Engine, EngineProcess
from cachefleet_worker.agent.engines.engine_errors import EngineError
from cachefleet_worker.agent.engines.vllm.http_client import RefusedAnswerError

REFUSED = RefusedAnswerError("/v1/models", 401)
BUSY = EngineError("/health: HTTP 503")
OTHER = RefusedAnswerError("/tokenize", 404)


class Arriving:
    """Cannot be connected to, with each error in turn, then can."""

    def __init__(self, *errors: EngineError) -> None:
        self.errors = list(errors)

    async def connect(self) -> EngineProcess:
        if self.errors:
            raise self.errors.pop(0)
        return cast("EngineProcess", "process")


def arrival(*errors: EngineError) -> EngineArrival:
    return EngineArrival(cast("Engine", Arriving(*errors)), poll_seconds=0, key_refusals=3)


@pytest.mark.parametrize("between", [BUSY, OTHER])
async def test_refusals_that_are_not_in_a_row_are_waited_out(between: EngineError) -> None:
    waiting = arrival(REFUSED, REFUSED, between, REFUSED, REFUSED)
    watching = asyncio.ensure_future(waiting.watch())
    await asyncio.sleep(0)
    assert cast("str", await waiting.process()) == "process"
    assert not waiting.key_refused
    assert not watching.done()
    watching.cancel()


async def test_so_many_in_a_row_are_the_end() -> None:
    waiting = arrival(*[REFUSED] * 100)
    watching = asyncio.ensure_future(waiting.watch())
    await asyncio.sleep(0)
    process = asyncio.ensure_future(waiting.process())
    with pytest.raises(KeyRefusedError, match=r"HTTP 401.*VLLM_API_KEY"):
        await watching
    assert waiting.key_refused
    process.cancel()
