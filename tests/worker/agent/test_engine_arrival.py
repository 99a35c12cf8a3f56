"""An engine that refuses the worker key is told of after refusals in a row alone."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from cachefleet_worker.agent.engine_arrival import EngineArrival, KeyRefusedError
from cachefleet_worker.agent.engines.vllm.http_client import EngineClient, EngineError, EngineFacts, EngineRefusalError

REFUSED = EngineRefusalError("/v1/models", 401)
BUSY = EngineError("/health: HTTP 503")
OTHER = EngineRefusalError("/tokenize", 404)


class Engine:
    """Answers a request for facts with each error in turn, then with facts."""

    def __init__(self, *errors: EngineError) -> None:
        self.errors = list(errors)

    async def facts(self) -> EngineFacts:
        if self.errors:
            raise self.errors.pop(0)
        return cast("EngineFacts", "facts")


def arrival(*errors: EngineError) -> EngineArrival:
    return EngineArrival(cast("EngineClient", Engine(*errors)), poll_seconds=0, key_refusals=3)


@pytest.mark.parametrize("between", [BUSY, OTHER])
async def test_refusals_that_are_not_in_a_row_are_waited_out(between: EngineError) -> None:
    waiting = arrival(REFUSED, REFUSED, between, REFUSED, REFUSED)
    watching = asyncio.ensure_future(waiting.watch())
    await asyncio.sleep(0)
    assert cast("str", await waiting.facts()) == "facts"
    assert not waiting.key_refused
    assert not watching.done()
    watching.cancel()


async def test_so_many_in_a_row_are_the_end() -> None:
    waiting = arrival(*[REFUSED] * 100)
    watching = asyncio.ensure_future(waiting.watch())
    await asyncio.sleep(0)
    facts = asyncio.ensure_future(waiting.facts())
    with pytest.raises(KeyRefusedError, match="HTTP 401"):
        await watching
    assert waiting.key_refused
    facts.cancel()
