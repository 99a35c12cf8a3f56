"""Answers under way on a worker that drains: others go on with those that can be resumed, and no client notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from cachefleet_controlplane.gateway.retry import stalled_attempts
from cachefleet_controlplane.gateway.retry.retry_state_machine import Action, begun, step
from cachefleet_controlplane.gateway.retry.stalled_attempts import StalledAttempts
from cachefleet_controlplane.gateway.retry.stream_relay import StreamRelay
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.workers.worker import MAX_STAY_SECONDS
from cachefleet_core.report_frames import Phase
from tests.controlplane.gateway.harness import Front, chat, engine, front
from tests.controlplane.gateway.retry.test_known_troubles import Agent, read_by_python
from tests.controlplane.gateway.retry.test_resume import joined, told
from tests.controlplane.waiting import task, until, value
from tests.fakes.engine import FakeEngine
from tests.fakes.loop_clock import clock as loop_clock

__all__ = ["read_by_python"]

LONG: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True, "return_token_ids": True, "stream": True}
LONG |= {"stream_options": {"include_usage": True}}
CHAT = ("/v1/chat/completions", chat("hello there", **LONG))
COMPLETION = ("/v1/completions", {"model": "fake", "prompt": "tell me more", **LONG})
MESSAGES = ("/v1/messages", {"model": "fake", "max_tokens": 300, "stream": True, "messages": CHAT[1]["messages"]})
SOON: dict[str, Any] = {"phase": Phase.DRAINING, "drain_seconds": 0.6}
"""Then others go on after a tenth of a second."""


@dataclass
class Drained:
    """A stream under way on ``demo-0``, which is to drain."""

    gate: Front
    agent: Agent
    leaving: FakeEngine
    asking: asyncio.Task[Any]

    @property
    def outcomes(self) -> list[str]:
        return [str(attempt.outcome) for attempt in self.gate.records[-1].attempts]


@asynccontextmanager
async def under_way(
    path: str, body: dict[str, Any], *, alone: bool = False, after: int = 5, pace: float = 0.02
) -> AsyncIterator[Drained]:
    async with (
        engine(plugin=True, inter_token_seconds=pace) as leaving,
        engine(plugin=True) as other,
        front([leaving] if alone else [leaving, other]) as gate,
    ):
        agent = Agent.of(gate)
        while not leaving.worker.scheduler.running:  # cold requests take turns
            asking = asyncio.create_task(gate.settled(path, body))
            await until(lambda asking=asking: asking.done() or bool(leaving.worker.scheduler.running))  # type: ignore[misc]
        running = leaving.worker.scheduler.running[0]
        await until(lambda: len(running.output) > after)
        yield Drained(gate, agent, leaving, asking)
        asking.cancel()
        await asyncio.wait({asking})


async def alone(path: str, body: dict[str, Any]) -> bytes:
    """What one worker answers by itself."""
    async with engine(plugin=True) as one, front([one]) as gate:
        return (await gate.settled(path, body))[2]


@pytest.mark.parametrize(("path", "body"), [CHAT, COMPLETION])
@pytest.mark.parametrize("native", [True, False])
async def test_others_go_on_with_a_stream_as_if_nothing_had_been(
    path: str, body: dict[str, Any], request: pytest.FixtureRequest, *, native: bool
) -> None:
    """Whether native code relays it or Python."""
    if not native:
        request.getfixturevalue("read_by_python")
    async with under_way(path, body) as drained:
        await drained.agent.says_until_done(drained.asking, **SOON)
        status, _, answer = await drained.asking
        assert (status, drained.outcomes) == (200, ["moved", "finished"])
        assert joined(answer) | {"names": 0} == joined(await alone(path, body)) | {"names": 0}
        assert joined(answer)["usage"]["completion_tokens"] == body["max_tokens"]
        assert [attempt.worker.rpartition("/")[2] for attempt in drained.gate.records[-1].attempts] == [
            "demo-0",
            "demo-1",
        ]
        assert value(drained.gate.metrics, "attempt_retries_total", reason="moved") == 1
        await until(lambda: not drained.leaving.worker.scheduler.running)  # it can end


@pytest.mark.parametrize("after", [1, 2, 16, 290, 296, 298, 299])
async def test_wherever_it_is_moved_nothing_is_lost_or_said_twice(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the moment of its last tokens."""
    monkeypatch.setattr(stalled_attempts, "LOOK_SECONDS", 0.002)
    path, body = COMPLETION
    async with under_way(path, body, after=after, pace=0.004) as drained:
        await drained.agent.says_until_done(drained.asking, **SOON | {"drain_seconds": 0.0})
        status, _, answer = await drained.asking
        assert status == 200
        assert joined(answer) | {"names": 0} == joined(await alone(path, body)) | {"names": 0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        MESSAGES,
        (CHAT[0], CHAT[1] | {"n": 2}),
        (CHAT[0], CHAT[1] | {"stop": ["no such word"]}),
        (CHAT[0], CHAT[1] | {"stream": False, "stream_options": None}),
    ],
    ids=["messages", "two choices", "stop strings", "whole"],
)
async def test_what_nobody_can_resume_stays_to_its_end(path: str, body: dict[str, Any]) -> None:
    async with under_way(path, body, pace=0.005) as drained:
        await drained.agent.says_until_done(drained.asking, **SOON)
        status, _, answer = await drained.asking
        assert (status, b"error" in answer) == (200, False)
        assert drained.outcomes[:1] == ["answered" if body["stream"] is False else "finished"]


async def test_a_whole_answer_that_its_engine_gives_back_goes_on_elsewhere() -> None:
    """As the agent has it do, since nobody else knows what was produced of it."""
    path, body = CHAT[0], CHAT[1] | {"stream": False, "stream_options": None}
    async with under_way(path, body) as drained:
        drained.agent.says(**SOON)
        assert drained.leaving.worker.hand_back_all() == 1
        await drained.agent.says_until_done(drained.asking, **SOON)
        status, _, answer = await drained.asking
        assert (status, drained.outcomes) == (200, ["handed_back", "answered"])
        assert told(answer) == told(await alone(path, body))


@pytest.mark.parametrize(("survives", "outcome"), [(True, Outcome.MOVED), (False, Outcome.FINISHED)])
async def test_it_is_handed_over_only_where_it_can_be_resumed_by_then(*, survives: bool, outcome: Outcome) -> None:
    """Its last token may have come since it was asked to, or the prompt's ids have not."""
    stalled = StalledAttempts(lambda _: {})
    stream = Mock(first=[], outcome=None, response=None, pause=lambda: None)
    resuming = Mock(survives=survives, movable=True, stopped=False, diverged=False)
    resuming.breaks.return_value, resuming.relayed.side_effect = False, lambda events: events
    resuming.outcome.side_effect = lambda of: of

    async def more() -> list[bytes]:
        (answer,) = stalled._relayed["demo"]
        if answer.leaves:
            stream.outcome = Outcome.FINISHED
            return []
        answer.leave()
        return [b"data: {}\n\n"]

    stream.more = more
    turn = Mock(passed=AsyncMock(side_effect=lambda events: events))
    relay = StreamRelay(AsyncMock(), turn, resuming, stalled)
    filtered = Mock(feed=lambda event: event, end=lambda: b"")
    assert await relay.run(stream, filtered, worker="demo", elsewhere=lambda: True) is outcome


def test_an_answer_that_was_moved_often_may_still_break_off() -> None:
    """As often as any: to be moved is no failed attempt."""
    progress = begun()
    for _ in range(10):
        for outcome in (Outcome.PLACED, Outcome.FIRST_EVENT, Outcome.MOVED, Outcome.RESUMABLE):
            progress, _ = step(progress, outcome, worker="demo-0", max_attempts=2)
    assert (progress.attempts, list(progress.avoided), list(progress.excluded)) == (0, ["demo-0"], [])
    for outcome in (Outcome.PLACED, Outcome.FIRST_EVENT):
        progress, _ = step(progress, outcome, worker="demo-0", max_attempts=2)
    assert step(progress, Outcome.CUT_OFF, max_attempts=2)[1] is Action.RESUME


async def test_where_no_other_worker_is_it_stays_to_its_end() -> None:
    path, body = CHAT
    async with under_way(path, body, alone=True, pace=0.005) as drained:
        await drained.agent.says_until_done(drained.asking, **SOON)
        assert (await drained.asking)[0] == 200
        assert drained.outcomes == ["finished"]


@pytest.mark.parametrize(
    ("left", "bound"), [(120.0, MAX_STAY_SECONDS), (None, MAX_STAY_SECONDS), (30.0, 5.0), (0.6, 0.1)]
)
async def test_it_stays_for_a_while_first_and_for_less_where_less_is_left(left: float | None, bound: float) -> None:
    """Most answers end soon, and to go on elsewhere costs computing their tokens anew."""
    path, body = CHAT
    async with under_way(path, body) as drained:
        fleet = drained.gate.fleet
        drained.agent.says(phase=Phase.DRAINING, drain_seconds=left)
        (trouble,) = fleet.troubles({"default/demo/demo-0"}).values()
        assert trouble.moves_at == pytest.approx(loop_clock() + bound, abs=0.5)
        drained.agent.says(phase=Phase.DRAINING, drain_seconds=None if left is None else left - 0.5)
        assert fleet.troubles({"default/demo/demo-0"})["default/demo/demo-0"].moves_at == pytest.approx(
            trouble.moves_at, abs=0.5
        )
        drained.agent.says()
        assert not fleet.troubles({"default/demo/demo-0"})


async def test_moves_are_no_failures_however_many_workers_go() -> None:
    """More than a request may fail: each worker drains while it answers, and the other one serves again."""
    path, body = COMPLETION
    async with (
        engine(plugin=True, inter_token_seconds=0.02) as one,
        engine(plugin=True, inter_token_seconds=0.02) as other,
        front([one, other]) as gate,
    ):
        engines = [one, other]

        async def go_and_come() -> None:
            while True:
                for number, each in enumerate(engines):
                    leaves = bool(each.worker.scheduler.running)
                    said: dict[str, Any] = {"drain_seconds": 0.0, "phase": Phase.DRAINING} if leaves else {}
                    gate.report(number, **said)
                await asyncio.sleep(0.4)

        async with task(go_and_come()):
            status, _, answer = await gate.settled(path, body)
        outcomes = [str(attempt.outcome) for attempt in gate.records[-1].attempts]
        assert (status, outcomes[-1], set(outcomes[:-1])) == (200, "finished", {"moved"})
        assert len(outcomes) > 4
        assert joined(answer)["ids"] == joined(await alone(path, body))["ids"]
        assert json.loads(answer.split(b"data: ")[-2])["usage"]["completion_tokens"] == body["max_tokens"]
