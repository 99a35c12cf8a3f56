"""Requests where the engines of some or all workers answer and serve nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.controlplane.gateway.harness import Front, engine, front
from tests.controlplane.waiting import until, value

pytestmark = pytest.mark.usefixtures("hurried")

LONG: dict[str, Any] = {"model": "fake", "prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True}
LONG |= {"stream_options": {"include_usage": True}}
ASKS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ("/v1/completions", {"prompt": [1, 2, 3]}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}),
]


async def test_a_worker_asleep_gets_nothing_until_it_wakes() -> None:
    async with engine() as one, engine() as other, front([one, other]) as gate:
        gate.report(0, suspended="asleep")
        gate.report(1)
        asked = {(await gate.chat(f"number {number}"))[1]["x-cachefleet-worker"] for number in range(6)}
        assert asked == {"demo-1"}
        gate.report(0)
        asked = {(await gate.chat(f"number {number}"))[1]["x-cachefleet-worker"] for number in range(6, 12)}
        assert asked == {"demo-0", "demo-1"}


@pytest.mark.parametrize(("path", "body"), ASKS)
async def test_where_none_serves_clients_are_told_so(path: str, body: dict[str, Any]) -> None:
    async with engine() as one, engine() as other, front([one, other]) as gate:
        gate.report(0, suspended="asleep")
        gate.report(1, suspended="updating_weights")
        status, headers, answer = await gate.post(path, {"model": "fake", "stream": True} | body)
        error = json.loads(answer)["error"]
        assert (status, headers["retry-after"]) == (503, "10")
        assert "serves now (1 asleep, 1 updating weights)" in error["message"]
        assert error.get("code", "workers_suspended") == "workers_suspended"
        assert value(gate.metrics, "admission_refusals_total", reason="no_ready_worker") == 1


@asynccontextmanager
async def fallen_asleep(*, alone: bool = False, **asked: Any) -> AsyncIterator[tuple[Front, asyncio.Task[Any]]]:
    """A completion whose engine falls asleep in the middle of it, which aborts what it has; maybe beside another."""
    sent = {name: value for name, value in (LONG | asked).items() if asked["stream"] or name != "stream_options"}
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(engine(inter_token_seconds=pace)) for pace in (0.02, 0.0)]
        gate = await stack.enter_async_context(front([one] if alone else [one, other]))
        while not one.worker.scheduler.running:  # cold requests take turns
            asking = asyncio.create_task(gate.post("/v1/completions", sent))
            await until(lambda asking=asking: asking.done() or bool(one.worker.scheduler.running))  # type: ignore[misc]
        await until(lambda: len(one.worker.scheduler.running[0].output) > 5)
        one.sleep()
        gate.report(0, suspended="asleep")
        yield gate, asking


def outcomes(gate: Front) -> list[str]:
    return [str(attempt.outcome) for attempt in gate.records[-1].attempts]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_a_sleeping_engine_gives_up_goes_on_elsewhere(*, stream: bool) -> None:
    async with fallen_asleep(stream=stream) as (gate, asking):
        status, _, told = await asking
        assert (status, told.count(b'"finish_reason":"length"'), b'"abort"' in told) == (200, 1, False)
        usage = json.loads(told.split(b"data: ")[-2] if stream else told)["usage"]
        assert usage["completion_tokens"] == LONG["max_tokens"]
        await until(lambda: bool(gate.records))
        assert outcomes(gate)[:1] == ["handed_back"]


async def test_a_whole_answer_that_nobody_can_resume_is_made_anew() -> None:
    async with fallen_asleep(stream=False, n=2, seed=1, temperature=1) as (gate, asking):
        status, headers, told = await asking
        assert (status, headers["x-cachefleet-worker"], b'"abort"' in told) == (200, "demo-1", False)
        assert outcomes(gate) == ["aborted", "answered"]


async def test_where_nobody_else_is_a_given_up_answer_is_no_answer() -> None:
    async with fallen_asleep(alone=True, stream=False, n=2, seed=1, temperature=1) as (_, asking):
        status, headers, told = await asking
        assert (status, headers["retry-after"]) == (503, "10")
        assert b"(1 asleep)" in told


@pytest.mark.parametrize("more", [{"n": 2, "seed": 1, "temperature": 1}, {}])
async def test_a_stream_that_nobody_goes_on_with_ends_with_an_error(more: dict[str, Any]) -> None:
    async with fallen_asleep(alone=True, stream=True, **more) as (gate, asking):
        status, _, told = await asking
        assert (status, b'"abort"' in told, b"broke off" in told) == (200, False, True)
        await until(lambda: bool(gate.records))
        assert outcomes(gate) == ["aborted" if more else "handed_back"]
