"""Requests that wait on a worker which has stopped answering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.fleet.worker_troubles import Trouble
from cachefleet_controlplane.gateway.retry.answer_latency import STREAM_SECONDS, SUSPENDED_SECONDS, UNLEARNT_SECONDS
from cachefleet_controlplane.gateway.retry.stalled_attempts import (
    ASKED_AT_ONCE,
    ENDED_AT_ONCE,
    LOOK_SECONDS,
    Relaying,
    StalledAttempts,
    Troubles,
    UnansweredAttempt,
)
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import Answer, AttemptResult
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_core.report_frames import Hello, Phase, State
from tests.controlplane.gateway.harness import CONTRACT, POOL, Front, _Agent, engine, front, pool
from tests.controlplane.gateway.retry.test_failover import Stalls, serving
from tests.controlplane.waiting import until, value
from tests.fakes.loop_clock import clock, hurried

pytestmark = pytest.mark.usefixtures("hurried")

TIMERS_ALONE = 10_000
"""The pace of time where nothing but timers is waited for."""
ANSWERED = AttemptResult(Outcome.ANSWERED, answer=Answer(200, (), b"{}"))
Asking = asyncio.Task[tuple[int, dict[str, str], bytes]]


@dataclass
class Stuck:
    """A request that waits on the first of two workers, and how that worker's state is told."""

    gate: Front
    bad: Stalls
    asking: Asking

    def listed(self, *, bad: bool, good: bool) -> None:
        told = zip(self.gate.endpoints(), (bad, good), strict=True)
        self.gate.fleet.update_pools([PoolView(pool(), tuple(WorkerEndpoint(e.name, e.url, on) for e, on in told))])

    async def passes(self, seconds: float) -> bool:
        """Whether the request still waits after so many."""
        await asyncio.wait({self.asking}, timeout=seconds)
        return not self.asking.done()


@asynccontextmanager
async def stuck(*, first: bool = False, stream: bool = False) -> AsyncIterator[Stuck]:
    bad = Stalls(first=first)
    async with serving(bad), engine() as good, front([bad, good]) as gate:
        body = {"model": "fake", "prompt": [1, 2, 3], "max_tokens": 4, "stream": stream}
        while not bad.asked:  # cold requests take turns
            asking = asyncio.create_task(gate.post("/v1/completions", body))
            await until(partial(lambda asking: asking.done() or bool(bad.asked), asking))
        yield Stuck(gate, bad, asking)
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking})


@pytest.mark.parametrize("stream", [False, True])
async def test_it_moves_on_once_the_worker_is_known_to_be_not_ready_and_is_answered_once(*, stream: bool) -> None:
    async with stuck(stream=stream) as case:
        assert await case.passes(2 * UNLEARNT_SECONDS)  # it may be at work
        case.listed(bad=False, good=True)
        status, headers, body = await case.asking
        assert (status, headers["x-cachefleet-worker"]) == (200, "demo-1")
        assert body.count(b'"finish_reason":"') == 1
        await case.bad.left.wait()  # it was disconnected
        await until(lambda: bool(case.gate.records))  # native code may have ended the answer
        assert [one.outcome for one in case.gate.records[-1].attempts] == [
            "stalled",
            "finished" if stream else "answered",
        ]
        assert value(case.gate.metrics, "attempt_retries_total", reason="stalled") == 1
        assert case.gate.fleet.view().inflight_requests == 0


async def test_it_waits_where_nobody_else_could_take_it() -> None:
    async with stuck() as case:
        case.listed(bad=False, good=False)
        assert await case.passes(2.5 * UNLEARNT_SECONDS)
        case.listed(bad=True, good=False)
        assert await case.passes(2.5 * UNLEARNT_SECONDS)
        assert case.bad.asked == 1


async def test_a_worker_that_drains_keeps_its_requests() -> None:
    async with stuck() as case:
        connection = case.gate.fleet.connect(_Agent())
        case.gate.fleet.hello(connection, Hello(worker="demo-0", pool=POOL, epoch="e", endpoint="", contract=CONTRACT))
        draining = State(sequence=-1, digest=0, held=0, phase=Phase.DRAINING, running=0, waiting=0)
        case.listed(bad=False, good=True)
        for _ in range(12):
            case.gate.fleet.receive(connection, draining)
            assert await case.passes(2)


async def test_an_answer_that_has_begun_is_never_moved() -> None:
    async with stuck(first=True, stream=True) as case:
        case.listed(bad=False, good=True)
        assert await case.passes(2.5 * UNLEARNT_SECONDS)
        assert not case.bad.left.is_set()


@pytest.fixture
async def timers_alone() -> AsyncIterator[None]:
    with hurried(asyncio.get_running_loop(), pace=TIMERS_ALONE):
        yield


def all_gone(workers: AbstractSet[str]) -> dict[str, Trouble]:
    """None is ready, and nothing more is known of them."""
    return {worker: Trouble() for worker in workers}


def no_trouble(_: AbstractSet[str]) -> dict[str, Trouble]:
    return {}


def troubled(**trouble: Any) -> Troubles:
    return lambda workers: {worker: Trouble(**trouble) for worker in workers}


def relaying(worker: str = "w", *, elsewhere: Callable[[], bool] = lambda: True, **more: Any) -> Relaying:
    return Relaying(worker, lambda: None, elsewhere, pause=lambda: None, movable=lambda: False, **more)


def waiting(
    worker: str = "w", *, predicted: float = 0.0, elsewhere: Callable[[], bool] = lambda: True
) -> UnansweredAttempt:
    return UnansweredAttempt(worker, stream=False, predicted=predicted, elsewhere=elsewhere)


async def answered(seconds: float) -> AttemptResult:
    await asyncio.sleep(seconds)
    return ANSWERED


async def stalls_after(stalled: StalledAttempts, attempt: UnansweredAttempt) -> float:
    began = clock()
    opened = await stalled.bounded(attempt, answered(1000))
    assert opened.outcome is Outcome.STALLED
    return clock() - began


@pytest.mark.usefixtures("timers_alone")
async def test_the_bound_follows_what_the_worker_usually_takes() -> None:
    quick, slow = StalledAttempts(all_gone, clock=clock), StalledAttempts(all_gone, clock=clock)
    for _ in range(30):
        await quick.bounded(waiting(), answered(0.1))
        await slow.bounded(waiting(), answered(4))
    assert await stalls_after(quick, waiting()) < 2
    assert await stalls_after(quick, waiting(predicted=3)) > 5
    assert await stalls_after(slow, waiting()) > 4
    assert await stalls_after(quick, waiting("another")) > UNLEARNT_SECONDS - 1


@pytest.mark.usefixtures("timers_alone")
async def test_whoever_answers_others_is_not_silent() -> None:
    stalled = StalledAttempts(all_gone, clock=clock)
    for _ in range(20):
        await stalled.bounded(waiting(), answered(0.5))
    long = asyncio.create_task(stalled.bounded(waiting(), answered(20)))
    for _ in range(38):
        await stalled.bounded(waiting(), answered(0.5))
    assert (await long).outcome is Outcome.ANSWERED


@pytest.mark.usefixtures("timers_alone")
async def test_a_worker_whose_streams_go_on_is_not_silent() -> None:
    stalled = StalledAttempts(all_gone, clock=clock)
    long = asyncio.create_task(stalled.bounded(waiting(), answered(30)))
    for _ in range(29):
        await asyncio.sleep(1)
        stalled.heard(relaying())
    assert (await long).outcome is Outcome.ANSWERED


@pytest.mark.usefixtures("timers_alone")
async def test_a_worker_whose_streams_others_relay_is_asked_for() -> None:
    stalled = StalledAttempts(all_gone, clock=clock)
    long = asyncio.create_task(stalled.bounded(waiting(), answered(30)))
    one, other = (relaying(elsewhere=lambda: False) for _ in range(2))
    with stalled.relaying(one), stalled.relaying(other):
        one.silent_seconds, other.silent_seconds = (lambda: 100.0), (lambda: 0.5)
        await asyncio.sleep(29)
        assert not long.done()
    assert (await stalls_after(stalled, waiting())) > UNLEARNT_SECONDS - 1
    assert not stalled._relayed
    long.cancel()


async def test_it_is_told_of_events_that_follow_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: set[str] = set()
    monkeypatch.setattr(StalledAttempts, "heard", lambda _, answer: heard.add(answer.worker))
    async with engine() as one, front([one]) as gate:
        body = {"model": "fake", "prompt": [1], "max_tokens": 9, "stream": True}
        assert (await gate.post("/v1/completions", body))[0] == 200
        await until(lambda: heard == {f"{POOL}/demo-0"})  # native code may have ended the answer


@pytest.mark.usefixtures("timers_alone")
async def test_few_are_asked_for_at_a_time_and_all_have_their_turn() -> None:
    stalled, asked = StalledAttempts(all_gone, clock=clock), list[int]()

    def hopeless(number: int) -> UnansweredAttempt:
        def nowhere() -> bool:
            asked.append(number)
            return False

        return waiting(elsewhere=nowhere)

    count, looks = 3 * ASKED_AT_ONCE, 6
    seconds = UNLEARNT_SECONDS + looks * LOOK_SECONDS
    await asyncio.gather(*(stalled.bounded(hopeless(number), answered(seconds)) for number in range(count)))
    assert set(asked) == set(range(count))
    assert len(asked) <= (looks + 2) * ASKED_AT_ONCE


@pytest.mark.usefixtures("timers_alone")
async def test_few_are_moved_at_a_time() -> None:
    stalled, places = StalledAttempts(all_gone, clock=clock), 3
    left: list[Outcome] = []

    async def one() -> None:
        left.append((await stalled.bounded(waiting(elsewhere=lambda: len(left) < places), answered(40))).outcome)

    await asyncio.gather(*(one() for _ in range(3 * ENDED_AT_ONCE)))
    assert left.count(Outcome.STALLED) <= ENDED_AT_ONCE + places
    assert len(left) == 3 * ENDED_AT_ONCE


async def test_errors_and_cancellation_pass() -> None:
    stalled = StalledAttempts(all_gone, clock=clock)

    async def failing() -> AttemptResult:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await stalled.bounded(waiting(), failing())
    task = asyncio.create_task(stalled.bounded(waiting(), answered(1000)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not stalled._waiting


Step = tuple[float, bool, bool]


@given(st.lists(st.tuples(st.floats(0.01, 30), st.booleans()), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_each_attempt_ends_once_and_only_a_gone_worker_s_are_moved(
    attempts: list[tuple[float, bool]],
    gone: bool,  # noqa: FBT001
    elsewhere: bool,  # noqa: FBT001
) -> None:
    async def run() -> None:
        with hurried(asyncio.get_running_loop(), pace=TIMERS_ALONE):
            stalled = StalledAttempts(all_gone if gone else no_trouble, clock=clock)
            one = [
                stalled.bounded(waiting(str(other), elsewhere=lambda: elsewhere), answered(seconds))
                for seconds, other in attempts
            ]
            outcomes = [opened.outcome for opened in await asyncio.gather(*one)]
            assert set(outcomes) <= {Outcome.ANSWERED, Outcome.STALLED}
            assert (gone and elsewhere) or Outcome.STALLED not in outcomes
            for outcome, (seconds, _) in zip(outcomes, attempts, strict=True):
                assert outcome is Outcome.ANSWERED or seconds >= 1
            assert not stalled._waiting

    asyncio.run(run())


@pytest.mark.parametrize(
    ("trouble", "elsewhere", "cut_after"),
    [
        ({}, True, STREAM_SECONDS),
        ({}, False, None),
        ({"suspended": True}, True, STREAM_SECONDS),
        ({"suspended": True}, False, SUSPENDED_SECONDS),
        ({"dead_since": -100.0}, False, STREAM_SECONDS),  # something has come since
        ({"dead_since": 1000.0}, False, LOOK_SECONDS),
    ],
)
@pytest.mark.usefixtures("timers_alone")
async def test_an_answer_that_has_begun_breaks_off_where_its_worker_is_known_not_to_go_on(
    trouble: dict[str, Any],
    elsewhere: bool,  # noqa: FBT001
    cut_after: float | None,
) -> None:
    began = clock()
    if "dead_since" in trouble:
        trouble = {"dead_since": began + trouble["dead_since"]}
    stalled, cut = StalledAttempts(troubled(**trouble), clock=clock), list[float]()
    answer = Relaying("w", lambda: cut.append(clock() - began), lambda: elsewhere, lambda: None, lambda: False)
    with stalled.relaying(answer):
        await asyncio.sleep(2 * SUSPENDED_SECONDS)
    assert len(cut) == (cut_after is not None)
    assert not cut or cut_after is None or cut_after <= cut[0] < cut_after + 3 * LOOK_SECONDS


@pytest.mark.usefixtures("timers_alone")
async def test_an_answer_of_which_something_comes_is_not_cut() -> None:
    stalled, cut = StalledAttempts(troubled(suspended=True), clock=clock), list[float]()
    answer = Relaying("w", lambda: cut.append(clock()), lambda: True, lambda: None, lambda: False)
    with stalled.relaying(answer):
        for _ in range(20):
            await asyncio.sleep(STREAM_SECONDS - 2)
            stalled.heard(answer)
    assert not cut
