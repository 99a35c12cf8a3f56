"""Requests beyond the room there is: they wait in order, are refused in time, and preempt nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from cachefleet_controlplane.routing.decision import RoutingPolicy, Verdict
from cachefleet_controlplane.store.tenant_records import TenantRecord
from tests.controlplane.gateway.harness import Front, Known, chat, engine, front
from tests.controlplane.gateway.tenancies import ACME, KEYS, UMBRELLA, directory
from tests.controlplane.waiting import task, until, value
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.usefixtures("hurried")

CHAT = "/v1/chat/completions"
BLOCKS = 40
"""Of an engine; 39 for requests, of which 2 stay free."""
Answer = tuple[int, dict[str, str], bytes]


def creeping() -> Callable[[], float]:
    """A clock on which no report becomes old, however slow the machine is."""
    ticks = count(1)
    return lambda: 1000 + 1e-6 * next(ticks)


def small(**options: Any) -> FakeEngine:
    return engine(num_blocks=BLOCKS, **{"natural_tokens": 10_000, "inter_token_seconds": 0.002} | options)


@asynccontextmanager
async def gate_before(*engines: FakeEngine, **options: Any) -> AsyncIterator[Front]:
    """A gateway that knows how many blocks these engines have, and is in no hurry unless ``options`` say so."""
    patient: dict[str, Any] = {"admission": "{maxQueueSeconds: 300}", "idle_seconds": 300, "render_seconds": 60}
    async with front(engines, clock=creeping(), **patient | options) as gate:
        for number in range(len(engines)):
            gate.report(number, **gate.load(number))
        yield gate


async def reporting(gate: Front) -> None:
    while True:
        for number in range(len(gate.engines)):
            gate.report(number, **gate.load(number))
        await asyncio.sleep(0.05)


def ask(gate: Front, name: str, *, prompt: int = 100, max_tokens: int = 60) -> asyncio.Task[Answer]:
    """A request of about so many tokens; it begins with its name, so that it shares nothing with others."""
    return asyncio.create_task(gate.chat(f"{name:<{prompt}}", max_tokens=max_tokens))


def asked(worker: FakeEngine) -> list[str]:
    """The names of the requests that reached an engine, in order."""
    bodies = [json.loads(seen.body) for seen in worker.requests if seen.path == CHAT]
    return [body["messages"][0]["content"].split()[0] for body in bodies]


def preemptions(*engines: FakeEngine) -> int:
    return sum(one.worker.scheduler.counters.preemptions for one in engines)


@pytest.mark.parametrize("told", [False, True], ids=["one report", "reports as it goes"])
async def test_a_burst_beyond_room_waits_and_preempts_nobody(*, told: bool) -> None:
    async with small() as one, small() as two, gate_before(one, two, queue_requests=20) as gate:
        async with task(reporting(gate) if told else asyncio.sleep(0)):
            answers = await asyncio.gather(*(ask(gate, f"r{number}") for number in range(14)))
        assert [status for status, _, _ in answers] == [200] * 14
        assert preemptions(one, two) == 0
        assert min(len(asked(one)), len(asked(two))) >= 3
        waited = [record for record in gate.records if record.queued_seconds is not None]
        assert len(waited) >= 6
        assert {record.verdict for record in gate.records} == {Verdict.ROUTE}
        assert value(gate.metrics, "queue_wait_seconds_count", outcome="served") == len(waited)
        assert value(gate.metrics, "queue_requests") == len(gate.queue) == 0


async def test_without_admission_the_same_burst_preempts() -> None:
    async with small() as one, small() as two, gate_before(one, two) as gate:
        gate.fleet.policy = RoutingPolicy.ROUND_ROBIN
        await asyncio.gather(*(ask(gate, f"r{number}") for number in range(14)))
        assert preemptions(one, two) > 0
        assert not any(record.queued_seconds for record in gate.records)


async def test_they_are_served_in_order_and_a_large_one_is_not_starved() -> None:
    """The first leaves room for a small one, which waits all the same: a large one came before it."""
    async with small(inter_token_seconds=0.02) as worker, gate_before(worker) as gate:
        answers = [ask(gate, "first", prompt=200)]
        await until(lambda: asked(worker) == ["first"])
        sizes = {"large": 350, "small": 20, "tiny": 1}
        for number, (name, size) in enumerate(sizes.items(), start=1):
            answers.append(ask(gate, name, prompt=size))
            await until(lambda number=number: len(gate.queue) == number)  # type: ignore[misc]
        assert [status for status, _, _ in await asyncio.gather(*answers)] == [200] * 4
        assert asked(worker)[:2] == ["first", "large"]
        assert sorted(asked(worker)[2:]) == ["small", "tiny"]


async def test_lists_of_prompts_hold_up_nobody_else() -> None:
    """A worker computes one at a time and leaves room beside it; who has nothing running goes before others."""

    def listed(name: str) -> asyncio.Task[Answer]:
        body = {"model": "fake", "prompt": [f"{name} {number}" for number in range(8)], "max_tokens": 60}
        return asyncio.create_task(gate.post("/v1/completions", body, authorization=f"Bearer {KEYS[ACME.name]}"))

    async def single() -> None:
        given = {"authorization": f"Bearer {KEYS[UMBRELLA.name]}"}
        assert (await gate.post(CHAT, chat("single", max_tokens=20), **given))[0] == 200

    async with (
        small(inter_token_seconds=0.02) as worker,
        gate_before(worker, known=Known(directory(ACME, UMBRELLA))) as gate,
    ):
        lists = [listed("first")]
        await until(lambda: len(worker.worker.scheduler.running) > 4)
        for number in (1, 2):
            lists.append(listed(f"list {number}"))
            await until(lambda number=number: len(gate.queue) == number)  # type: ignore[misc]
        await single()
        assert len(gate.queue) == 2
        assert not any(one.done() for one in lists)
        assert [status for status, _, _ in await asyncio.gather(*lists)] == [200] * 3
        assert len(gate.queue) == 0


async def test_a_tenant_of_higher_priority_goes_first() -> None:
    urgent = TenantRecord(name=UMBRELLA.name, priority=0)
    async with (
        small(inter_token_seconds=0.02) as worker,
        gate_before(worker, known=Known(directory(ACME, urgent))) as gate,
    ):
        answers = []
        for number, (tenant, name) in enumerate([(ACME, "first"), (ACME, "patient"), (urgent, "urgent")]):
            key = {"authorization": f"Bearer {KEYS[tenant.name]}"}
            body = chat(f"{name:<350}", max_tokens=60)
            answers.append(asyncio.create_task(gate.post(CHAT, body, **key)))
            await until(lambda number=number: (bool(asked(worker)), len(gate.queue)) == (True, number))  # type: ignore[misc]
        assert [status for status, _, _ in await asyncio.gather(*answers)] == [200] * 3
        assert asked(worker) == ["first", "urgent", "patient"]


@asynccontextmanager
async def busy(**options: Any) -> AsyncIterator[tuple[FakeEngine, Front]]:
    """An engine that one request keeps busy for longer than a test takes."""
    async with small(inter_token_seconds=0.3) as worker, gate_before(worker, **options) as gate:
        long = ask(gate, "long", prompt=200, max_tokens=256)
        await until(lambda: asked(worker) == ["long"])
        yield worker, gate
        long.cancel()
        await asyncio.wait({long})


def refused(answer: Answer) -> tuple[int, str, int]:
    """Status, code and seconds to wait, of a refusal in OpenAI's shape."""
    status, headers, body = answer
    error = json.loads(body)["error"]
    assert error["type"] == "rate_limit_error"
    return status, error["code"], int(headers["retry-after"])


async def test_a_full_room_is_429_and_says_when_to_come_again() -> None:
    async with busy(queue_requests=1) as (worker, gate):
        waiting = ask(gate, "waiting", prompt=300)
        await until(lambda: len(gate.queue) == 1)
        status, code, seconds = refused(await ask(gate, "late", prompt=300))
        assert (status, code) == (429, "queue_full")
        assert 1 <= seconds <= 60
        assert value(gate.metrics, "admission_refusals_total", reason="queue_full") == 1
        (record,) = gate.records
        assert (record.verdict, record.reason, record.status, record.worker) == ("reject", "queue_full", 429, "")
        assert record.candidates[0].fits is False
        assert record.candidates[0].needed_blocks > (record.candidates[0].free_blocks or 0)
        assert asked(worker) == ["long"]
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_client_that_leaves_frees_its_place() -> None:
    async with busy(queue_requests=1) as (worker, gate):
        waiting = ask(gate, "waiting", prompt=300)
        await until(lambda: len(gate.queue) == 1)
        waiting.cancel()
        await until(lambda: len(gate.queue) == 0)
        await until(lambda: len(gate.records) == 1)
        (record,) = gate.records
        assert (record.verdict, record.reason, record.status) == ("queue", "no_room", 499)
        assert record.queued_seconds is not None
        again = ask(gate, "again", prompt=300)
        await until(lambda: len(gate.queue) == 1)
        again.cancel()
        await asyncio.wait({again})
        assert asked(worker) == ["long"]
        assert value(gate.metrics, "queue_wait_seconds_count", outcome="gone") >= 1


async def test_whoever_waits_longer_than_its_pool_allows_is_429() -> None:
    async with busy(admission="{maxQueueSeconds: 1}") as (worker, gate):
        assert refused(await ask(gate, "late", prompt=300))[:2] == (429, "queue_timeout")
        (record,) = gate.records
        assert (record.verdict, record.reason, record.status) == ("reject", "queue_timeout", 429)
        assert record.queued_seconds is not None
        assert record.queued_seconds > 0.9
        assert asked(worker) == ["long"]


async def test_where_nobody_may_wait_it_is_429_at_once() -> None:
    async with busy(admission="{maxQueueSeconds: 0}") as (_, gate):
        assert refused(await ask(gate, "late", prompt=300))[:2] == (429, "no_room")
        assert gate.records[0].queued_seconds is None


async def test_room_that_others_wait_for_already_is_not_taken() -> None:
    async with busy() as (worker, gate):
        large = ask(gate, "large", prompt=300)
        await until(lambda: len(gate.queue) == 1)
        small_one = ask(gate, "small", prompt=1, max_tokens=1)
        await until(lambda: len(gate.queue) == 2)
        large.cancel()
        assert (await small_one)[0] == 200
        assert asked(worker) == ["long", "small"]
        await asyncio.wait({large})


async def test_c15_what_no_worker_can_ever_hold_is_400_with_both_numbers_and_waits_for_nothing() -> None:
    async with small() as worker, gate_before(worker) as gate:
        status, _, body = await ask(gate, "huge", prompt=500, max_tokens=200)
        error = json.loads(body)["error"]
        assert (status, error["code"], error["type"]) == (400, "context_length_exceeded", "invalid_request_error")
        (record,) = gate.records
        needed = -(-(record.prompt_tokens + 200) // 16)
        assert f"{record.prompt_tokens + 200} tokens ({needed} blocks of 16)" in error["message"]
        assert f"{(BLOCKS - 1) * 16} ({BLOCKS - 1} blocks)" in error["message"]
        assert (record.verdict, record.reason, record.status) == ("reject", "too_large", 400)
        assert record.queued_seconds is None
        assert asked(worker) == []
        assert value(gate.metrics, "admission_refusals_total", reason="too_large") == 1


async def test_an_answer_without_a_bound_is_taken_to_end_where_the_worker_s_context_does() -> None:
    """Its prompt and what is left of the context are all of the blocks, and no more."""
    context = (BLOCKS - 1) * 16
    async with small(natural_tokens=3) as worker, gate_before(worker, max_model_len=context) as gate:
        body = {"model": "fake", "messages": [{"role": "user", "content": "x" * (context - 100)}]}
        assert (await gate.post(CHAT, body))[0] == 200
        (record,) = gate.records
        assert record.prompt_tokens + 256 > context
        assert record.candidates[0].needed_blocks == BLOCKS - 1
