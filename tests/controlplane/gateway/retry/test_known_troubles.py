"""Answers that wait on a worker of which the fleet knows that it will not answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from cachefleet_controlplane.fleet.agent_connection import Connection
from cachefleet_controlplane.gateway.converse.turn import PlainTurn
from cachefleet_controlplane.gateway.retry import answer_latency
from cachefleet_controlplane.gateway.retry.answer_latency import STREAM_SECONDS, SUSPENDED_SECONDS
from cachefleet_controlplane.gateway.send.answers.stream_filter import Passes
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.report_frames import ENGINE_LOST, Hello, Phase, State
from tests.controlplane.gateway.harness import (
    CONTRACT,
    POOL,
    Front,
    Worker,
    _Agent,
    chat,
    engine,
    front,
    pool,
)
from tests.controlplane.gateway.retry.test_failover import Stalls, serving
from tests.controlplane.gateway.retry.test_resume import joined
from tests.controlplane.waiting import task, until

RELAYED_SECONDS = 5
"""From so much silence on Python reads a stream (QUIET in native/src/transport/relay)."""
hurried_only = pytest.mark.usefixtures("hurried")
RESPONSES: dict[str, Any] = {"path": "/v1/responses", "input": "x"}
"""Asks for a stream that nobody resumes."""
Answer = tuple[int, dict[str, str], bytes]
LONG_CHAT: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "stream": True}
LONG_CHAT |= {"stream_options": {"include_usage": True}}
LONG = {"model": "fake", "prompt": [1, 2, 3], "max_tokens": 400, "ignore_eos": True, "stream": True}
SILENCED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", chat("hello there", **LONG_CHAT)),
    ("/v1/completions", LONG | {"stream_options": {"include_usage": True}}),
]
ASKS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ("/v1/completions", {"prompt": [1, 2, 3]}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}),
]


@dataclass
class Agent:
    """The agent beside worker ``demo-0``, which says each second what a test has it say."""

    gate: Front
    connection: Connection

    @classmethod
    def of(cls, gate: Front) -> Agent:
        connection = gate.fleet.connect(_Agent())
        gate.fleet.hello(connection, Hello(worker="demo-0", pool=POOL, epoch="e", endpoint="", contract=CONTRACT))
        return cls(gate, connection)

    def says(self, **said: Any) -> None:
        fields: dict[str, Any] = {"phase": Phase.READY, "running": 0, "waiting": 0} | said
        self.gate.fleet.receive(self.connection, State(sequence=-1, digest=0, held=0, **fields))

    async def says_until(self, asking: asyncio.Task[Answer], *, seconds: float, **said: Any) -> None:
        """Say it each second, until there is an answer, or so many have passed."""
        for _ in range(round(seconds)):
            self.says(**said)
            await asyncio.wait({asking}, timeout=1)
            if asking.done():
                return

    async def says_until_done(self, asking: asyncio.Task[Answer], **said: Any) -> None:
        """Say it each second until there is an answer; TimeoutError where none comes in real time."""

        async def say() -> None:
            while True:
                self.says(**said)
                await asyncio.sleep(1)

        async with task(say()):
            await until(asking.done)


LOST: dict[str, Any] = {"phase": Phase.STARTING, "reason": ENGINE_LOST}
ASLEEP: dict[str, Any] = {"suspended": "asleep"}


@pytest.fixture
def read_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are read as those of conversations: native code relays none, by whose real time it would be silent."""
    monkeypatch.setattr(PlainTurn, "passes", Passes.NOTHING)


@asynccontextmanager
async def silent(
    *others: Worker, first: bool = False, path: str = "/v1/completions", **body: Any
) -> AsyncIterator[Any]:
    """A request that waits on ``demo-0``, which says nothing (more), and that worker's agent."""
    bad = Stalls(first=first, seconds=600)
    async with serving(bad), front([bad, *others], idle_seconds=600) as gate:
        agent = Agent.of(gate)
        asked = {"model": "fake", "stream": first} | (body or {"prompt": [1, 2, 3], "max_tokens": 4})
        while not bad.asked:  # cold requests take turns
            asking = asyncio.create_task(gate.post(path, asked))
            await until(lambda asking=asking: asking.done() or bool(bad.asked))  # type: ignore[misc]
        yield gate, agent, asking
        asking.cancel()
        await asyncio.wait({asking})


@hurried_only
@pytest.mark.parametrize("stream", [False, True])
async def test_it_goes_elsewhere_once_the_engine_has_ended(*, stream: bool) -> None:
    async with engine() as good, silent(good, prompt=[1, 2, 3], max_tokens=4, stream=stream) as (gate, agent, asking):
        await agent.says_until_done(asking, **LOST)
        status, headers, _ = await asking
        assert (status, headers["x-cachefleet-worker"]) == (200, "demo-1")
        await until(lambda: bool(gate.records))  # native code may have ended the answer
        assert [one.outcome for one in gate.records[-1].attempts][:1] == ["stalled"]


@hurried_only
async def test_where_no_other_worker_is_it_is_503_at_once() -> None:
    async with silent() as (_, agent, asking):
        await agent.says_until_done(asking, **LOST)
        assert (await asking)[0] == 503


@pytest.mark.parametrize(("path", "body"), ASKS)
async def test_a_stream_that_nobody_can_resume_ends_with_its_api_s_error(path: str, body: dict[str, Any]) -> None:
    async with silent(first=True, path=path, **body | {"model": "fake", "stream": True}) as (gate, agent, asking):
        await agent.says_until_done(asking, **LOST)
        status, _, told = await asking
        assert (status, b"broke off" in told, b"error" in told) == (200, True, True)
        await until(lambda: bool(gate.records))  # native code may have ended the answer
        assert gate.records[-1].attempts[-1].outcome == "lost"


@hurried_only
async def test_an_answer_that_comes_is_not_cut_whatever_the_agent_says() -> None:
    async with engine(inter_token_seconds=0.5, max_model_len=4096) as one, front([one]) as gate:
        agent = Agent.of(gate)
        asking = asyncio.create_task(gate.post("/v1/completions", LONG | {"max_tokens": 60}))
        await agent.says_until_done(asking, **LOST)
        status, _, told = await asking
        assert (status, told.count(b'"finish_reason":"length"')) == (200, 1)


@asynccontextmanager
async def hanging(path: str = "/v1/completions", body: dict[str, Any] = LONG, **options: Any) -> AsyncIterator[Any]:
    """A stream on the first of two engines, which hangs in the middle of it."""
    async with engine(inter_token_seconds=0.01, **options) as bad, engine() as good, front([bad, good]) as gate:
        while not bad.worker.scheduler.running:
            asking = asyncio.create_task(gate.post(path, body))
            await until(lambda asking=asking: asking.done() or bool(bad.worker.scheduler.running))  # type: ignore[misc]
        await until(lambda: len(bad.worker.scheduler.running[0].output) > 20)
        bad.hang()
        yield gate, Agent.of(gate), asking
        asking.cancel()
        await asyncio.wait({asking})


def tokens(told: bytes) -> int:
    events = [json.loads(line[6:]) for line in told.split(b"\n") if line.startswith(b"data: {")]
    return len([one for one in events if one["choices"] and one["choices"][0]["text"]])


async def test_a_stream_that_others_can_resume_goes_on_there() -> None:
    """In real time, since native code's timers are."""
    async with hanging() as (gate, agent, asking):
        await agent.says_until_done(asking, **LOST)
        status, _, told = await asking
        assert (status, told.count(b'"finish_reason":"length"'), b"error" in told) == (200, 1, False)
        await until(lambda: bool(gate.records))  # native code may have ended the answer
        assert [one.outcome for one in gate.records[-1].attempts] == ["cut_off", "finished"]
        assert gate.fleet.view().inflight_requests == 0


async def test_a_stream_that_native_code_relays_and_that_falls_silent_goes_on_elsewhere() -> None:
    """From its first event native code knows what came of it, and Python nothing. In real time, as above."""
    async with asyncio.TaskGroup() as both:
        for path, body in SILENCED:
            both.create_task(_goes_on_elsewhere(path, body))


async def _goes_on_elsewhere(path: str, body: dict[str, Any]) -> None:
    async with engine() as one, front([one]) as gate:
        _, _, whole = await gate.post(path, body)
    async with hanging(path, body) as (gate, agent, asking):
        began = time.monotonic()
        await agent.says_until_done(asking, **ASLEEP)
        assert time.monotonic() - began > STREAM_SECONDS - 4, "silent since shortly before"
        status, _, told = await asking
        assert (status, joined(told) | {"names": 0}) == (200, joined(whole) | {"names": 0})
        await until(lambda: bool(gate.records))  # native code may have ended the answer
        assert [one.outcome for one in gate.records[-1].attempts] == ["cut_off", "finished"]


async def test_a_silent_stream_goes_on_where_it_is_once_its_worker_says_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has come from native code to Python by then, which hands it back."""
    monkeypatch.setattr(answer_latency, "STREAM_SECONDS", 600.0)  # however slow this machine is
    path, body = SILENCED[0]
    async with engine() as one, front([one]) as gate:
        _, _, whole = await gate.post(path, body)
    async with hanging(path, body) as (gate, agent, asking):
        await agent.says_until(asking, seconds=RELAYED_SECONDS + 1, **ASLEEP)
        hung = next(one for one in gate.engines if one.worker.scheduler.running)
        hung.resume()
        await agent.says_until_done(asking)
        assert joined((await asking)[2]) | {"names": 0} == joined(whole) | {"names": 0}
        await until(lambda: bool(gate.records))
        assert [one.outcome for one in gate.records[-1].attempts] == ["finished"]


@hurried_only
async def test_one_whose_engine_serves_nothing_is_taken_from_it() -> None:
    async with engine() as good, silent(good) as (_, agent, asking):
        await agent.says_until_done(asking, **ASLEEP)
        assert (await asking)[1]["x-cachefleet-worker"] == "demo-1"


@hurried_only
@pytest.mark.usefixtures("read_by_python")
@pytest.mark.parametrize("first", [False, True])
async def test_where_nobody_else_takes_it_an_engine_that_serves_nothing_is_waited_for_a_while(*, first: bool) -> None:
    async with silent(first=first, **RESPONSES) as (_, agent, asking):
        await agent.says_until(asking, seconds=SUSPENDED_SECONDS - 5, **ASLEEP)
        assert not asking.done()
        await agent.says_until_done(asking, **ASLEEP)
        status, headers, told = await asking
        assert (status, headers.get("retry-after")) == ((200, None) if first else (503, "10"))
        assert (b"broke off" if first else b"(1 asleep)") in told


@hurried_only
@pytest.mark.usefixtures("read_by_python")
async def test_a_worker_that_neither_pool_source_nor_agent_knows_is_waited_for_no_more() -> None:
    async with engine() as good, silent(good, first=True, **RESPONSES) as (gate, agent, asking):
        agent.says()
        gate.fleet.update_pools([PoolView(pool(), gate.endpoints()[1:])])
        await agent.says_until(asking, seconds=12)  # as where only a label was taken off
        assert not asking.done()
        await asyncio.wait({asking}, timeout=STREAM_SECONDS)
        assert b"broke off" in (await asking)[2]
