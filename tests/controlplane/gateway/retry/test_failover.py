"""Workers that fail, before and after the first byte; clients that go."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web

from cachefleet_controlplane.gateway.send.answer_budget import COUNTED_BYTES, AnswerBudget
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from tests.controlplane.gateway.harness import Front, Worker, chat, engine, events, front, pool
from tests.controlplane.waiting import until, value

pytestmark = pytest.mark.usefixtures("hurried")

FIRST = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'


class Scripted:
    """A worker that answers as a test says; ``asked`` counts."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith(("/render", "/tokenize")):
            return web.json_response({"detail": "Not Found"}, status=404)
        self.asked += 1
        return await self.answer(request)


class Reset(Scripted):
    """Takes a request and drops the connection."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


class BeginsWithError(Scripted):
    """Answers 200, and then the first event is a failure of its own."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = b'data: {"error":{"message":"dead","type":"InternalServerError","param":null,"code":500}}\n\n'
        return web.Response(body=body + b"data: [DONE]\n\n", content_type="text/event-stream")


class Breaks(Scripted):
    """Drops the connection after the first event."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(FIRST)
        assert request.transport is not None
        request.transport.abort()
        return response


class Stalls(Breaks):
    """Says nothing more after the first event, or after ``said``, or from the start."""

    def __init__(self, *, first: bool, said: bytes = b"", seconds: float = 60) -> None:
        super().__init__()
        self._seconds = seconds
        self._first = first
        self._said = said
        self.left = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        try:
            if self._first:
                await response.prepare(request)
                await response.write(self._said or FIRST)
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.left.set()
            raise
        return response


@asynccontextmanager
async def serving(worker: Scripted) -> AsyncIterator[Scripted]:
    app = web.Application()
    app.router.add_post("/{path:.*}", worker.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    worker.url = site.name
    try:
        yield worker
    finally:
        await runner.cleanup()


async def ask_until_both_are_tried(gate: Front, broken: Scripted, *, stream: bool) -> list[int]:
    """Statuses of requests; cold ones go to the least recently used worker, so both get their turn."""
    statuses = []
    for number in range(4):
        status, headers, _ = await gate.chat(f"request {number}", stream=stream)
        statuses.append(status)
        assert headers["x-cachefleet-worker"] == "demo-1"
    assert broken.asked
    return statuses


@pytest.mark.parametrize(("broken", "stream"), [(Reset, False), (Reset, True), (BeginsWithError, True)])
async def test_an_attempt_that_fails_before_its_first_byte_is_retried_elsewhere(
    broken: type[Scripted],
    stream: bool,  # noqa: FBT001
) -> None:
    async with serving(broken()) as bad, engine() as good, front([bad, good]) as gate:
        assert await ask_until_both_are_tried(gate, bad, stream=stream) == [200] * 4
    attempts = next(record.attempts for record in gate.records if len(record.attempts) > 1)
    assert attempts[-1].worker == "demo-1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.requirement("C12")
async def test_a_dead_worker_costs_nobody_an_answer(*, stream: bool) -> None:
    async with engine() as dead, engine() as alive, front([dead, alive]) as gate:
        await dead.crash()
        for number in range(4):
            status, headers, _ = await gate.settled_chat(f"request {number}", stream=stream)
            assert (status, headers["x-cachefleet-worker"]) == (200, "demo-1")
        assert value(gate.metrics, "attempt_retries_total", reason="unreachable") >= 1
    tried = [record for record in gate.records if len(record.attempts) == 2]
    assert [attempt.outcome for attempt in tried[0].attempts] == ["unreachable", "finished" if stream else "answered"]
    # Backing off: not every request runs into it.
    assert len(tried) < 4


async def test_a_worker_of_another_pool_is_not_taken_for_its_namesake() -> None:
    async with engine() as dead, engine() as alive, front([dead, alive]) as gate:
        here = pool()
        there = here.model_copy(update={"metadata": here.metadata.model_copy(update={"name": "other"})})
        ways = [(here, dead), (there, alive)]
        views = [PoolView(declared, (WorkerEndpoint("demo-0", worker.url, ready=True),)) for declared, worker in ways]
        gate.fleet.update_pools(views)
        await dead.crash()
        assert [(await gate.chat(f"request {number}"))[0] for number in range(4)] == [200] * 4
        assert {worker.pool for worker in gate.fleet.view().workers if worker.backing_off} == {"default/demo"}


async def test_a_5xx_is_retried_and_only_given_back_when_nobody_does_better() -> None:
    async with engine() as one, engine() as two, front([one, two]) as gate:
        for number in (0, 1):
            gate.report(number)
        one.fail_next(500, 2)  # the render and the answer
        assert (await gate.chat("x"))[0] == 200
    async with engine() as only, front([only]) as gate:
        only.fail_next(503, 3)
        status, _, body = await gate.chat("x")
        assert status == 503
        assert json.loads(body)["error"]["message"] == "Injected failure"


async def test_a_4xx_is_the_clients_and_is_not_retried() -> None:
    async with engine() as one, engine() as two, front([one, two]) as gate:
        status, _, _ = await gate.settled_chat("x", n=0)
        assert status == 400
    assert len(gate.records[0].attempts) == 1


async def test_everybody_gone_is_a_503_that_says_when_to_come_back() -> None:
    async with engine() as dead, front([dead]) as gate:
        await dead.crash()
        status, headers, body = await gate.settled_chat("x", stream=True)
    assert (status, headers["retry-after"]) == (503, "2")
    assert json.loads(body)["error"]["type"] == "server_error"
    assert gate.records[0].status == 503
    assert [attempt.outcome for attempt in gate.records[0].attempts] == ["unreachable"]


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    async with serving(Breaks()) as bad, front([bad]) as gate:
        status, _, body = await gate.settled_chat("x", stream=True)
    first, error, done = events(body)
    assert status == 200
    assert json.loads(first)["choices"][0]["delta"] == {"content": "a"}
    assert json.loads(error)["error"]["code"] == "502"
    assert done == b"[DONE]"
    assert [attempt.outcome for attempt in gate.records[0].attempts] == ["lost"]


async def test_a_worker_silent_in_a_stream_ends_it_and_one_silent_from_the_start_is_a_504() -> None:
    async with serving(Stalls(first=True)) as worker, front([worker], idle_seconds=0.2) as gate:
        _, _, body = await gate.chat("x", stream=True)
        assert json.loads(events(body)[-2])["error"]["code"] == "502"
    async with serving(Stalls(first=False)) as worker, front([worker], idle_seconds=0.2) as gate:
        status, _, _ = await gate.chat("x", stream=True)
        assert (status, worker.asked) == (504, 1)


@pytest.mark.parametrize("first", [True, False], ids=["in-stream", "before-first-byte"])
async def test_a_client_that_goes_frees_the_worker(*, first: bool) -> None:
    async with serving(Stalls(first=first)) as worker, front([worker], idle_seconds=30) as gate:
        async with aiohttp.ClientSession() as http:
            asking = asyncio.ensure_future(http.post(gate.url + "/v1/chat/completions", json=chat("x", stream=True)))
            await until(lambda: bool(worker.asked))
            if first:
                answer = await asking
                await answer.content.readany()
                answer.close()
            asking.cancel()
        await asyncio.wait_for(worker.left.wait(), 30)  # type: ignore[attr-defined]
        await until(lambda: bool(gate.records))
        assert value(gate.metrics, "client_disconnects_total") == 1
        assert gate.fleet.view().inflight_requests == 0
        assert gate.gateway.under_way == 0
    assert [attempt.outcome for attempt in gate.records[0].attempts] == ["cancelled"]
    assert gate.records[0].status == (200 if first else 499)


async def test_a_client_that_goes_after_the_last_event_was_answered_whole() -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 32}}
    said = FIRST + b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n"
    async with serving(Stalls(first=True, said=said)) as worker, front([worker], idle_seconds=30) as gate:
        answer = await gate.http.post(gate.url + "/v1/chat/completions", json=chat("x", stream=True))
        heard = b""
        while b"[DONE]" not in heard:
            heard += await answer.content.readany()
        answer.close()
        await until(lambda: bool(gate.records))
    assert [attempt.outcome for attempt in gate.records[0].attempts] == ["finished"]
    assert gate.records[0].cached_tokens == 32


async def test_a_client_that_goes_while_its_prompt_is_rendered_is_noticed() -> None:
    async with engine() as worker, front([worker], render_seconds=300) as gate:
        gate.report(0)
        worker.hang()
        async with aiohttp.ClientSession() as http:
            asking = asyncio.ensure_future(http.post(gate.url + "/v1/chat/completions", json=chat("x")))
            await until(lambda: gate.gateway.under_way == 1)
            await asyncio.sleep(0.05)
            asking.cancel()
        await until(lambda: gate.gateway.under_way == 0)
        worker.resume()


async def test_a_slow_client_slows_the_worker_not_our_memory() -> None:
    piece = b"data: " + b"x" * 65_000 + b"\n\n"
    written = 0

    class Pours(Scripted):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            nonlocal written
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            while True:
                await response.write(piece)
                written += len(piece)

    async with serving(Pours()) as worker, front([worker]) as gate:
        answer = await gate.http.post(gate.url + "/v1/chat/completions", json=chat("x", stream=True))
        await answer.content.readany()
        before = -1
        while before != written:
            before = written
            await asyncio.sleep(0.2)  # by then a socket with room would have taken more
        assert written < 40 * 1024 * 1024  # what sockets of three hops hold
        answer.close()


async def test_idle_connections_that_a_worker_closed_cost_nothing() -> None:
    """A kept-alive connection closed at the wrong moment looks like a dead worker, once."""
    drops = 1

    class Closes(Scripted):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            nonlocal drops
            if drops:
                drops -= 1
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            return web.json_response({"usage": {"prompt_tokens": 1}})

    async with serving(Closes()) as worker, front([worker]) as gate:
        status, _, _ = await gate.settled_chat("x")
    assert (status, worker.asked) == (200, 2)
    assert [attempt.outcome for attempt in gate.records[0].attempts] == ["lost", "answered"]


def test_scripted_workers_are_workers() -> None:
    worker: Worker = Reset()
    assert worker.url == ""


class Long(Scripted):
    """Answers with more than is counted of one answer."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"choices":[' + b" " * 2 * COUNTED_BYTES + b"]}", content_type="application/json")


async def test_an_answer_for_which_there_is_no_room_is_a_503_and_is_not_asked_for_again() -> None:
    async with serving(Long()) as worker, front([worker]) as gate:
        assert (await gate.settled_chat("hello"))[0] == 200
        upstream = gate.gateway._context.upstream
        assert upstream.answers.held == 0
        upstream.answers = AnswerBudget(3 * COUNTED_BYTES)
        status, headers, _ = await gate.settled_chat("hello again")
        assert (status, headers["retry-after"], worker.asked) == (503, "2", 2)
    assert [attempt.outcome for attempt in gate.records[-1].attempts] == ["crowded"]
