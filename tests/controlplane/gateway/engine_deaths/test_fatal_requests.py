"""A request that ends engines: what becomes of it, and of its neighbours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.controlplane.gateway.harness import MODEL, WORKER_KEY, Front, engine, events, front
from tests.controlplane.gateway.roles import nixl, split
from tests.controlplane.waiting import until, value
from tests.fakes.engine import FakeEngine

POISON = "a prompt that ends engines"
CHAT = "/v1/chat/completions"


class Mortal(FakeEngine):
    """An engine that ends when it is sent POISON: at once, or with the 500 of an API server whose core is gone."""

    core_only = False
    lethal = POISON
    ended = 0

    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.core_only and self.ended:
            return web.json_response(
                {"error": {"message": "EngineDeadError", "code": 500}}, status=self._status(request)
            )
        if request.path == CHAT and self.lethal.encode() in await request.read():
            self.ended += 1
            if self.core_only:
                return web.json_response({"error": {"message": "EngineDeadError", "code": 500}}, status=500)
            ending = asyncio.ensure_future(self.crash())
            await asyncio.sleep(30)
            await ending
        return await super()._middleware(request, handler)

    @staticmethod
    def _status(request: web.Request) -> int:
        return 503 if request.path == "/health" else 500

    _middleware = web.middleware(_middleware)


@asynccontextmanager
async def fleet(number: int, *, core_only: bool = False, **options: Any) -> AsyncIterator[tuple[Front, list[Mortal]]]:
    own: dict[str, Any] = {"model": MODEL, "api_key": WORKER_KEY, "natural_tokens": 6, **options}
    async with AsyncExitStack() as stack:
        engines = [Mortal(**own) for _ in range(number)]
        for one in engines:
            one.core_only = core_only
            await stack.enter_async_context(one)
        gate = await stack.enter_async_context(front(engines))
        for place in range(number):
            gate.report(place)
        yield gate, engines


def living(engines: list[Mortal]) -> int:
    return sum(one.running and not one.ended for one in engines)


def code(body: bytes) -> object:
    return json.loads(body)["error"]["code"]


@pytest.mark.parametrize("core_only", [False, True], ids=["process", "core"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_one_body_ends_two_engines_and_no_third(*, stream: bool, core_only: bool) -> None:
    async with fleet(4, core_only=core_only) as (gate, engines):
        for _ in range(3):  # its client does not heed that it should not ask again
            status, headers, body = await gate.chat(POISON, stream=stream)
            assert (status, code(body)) == (422, "fatal_request")
            assert "retry-after" not in headers
            assert headers["x-should-retry"] == "false"
        assert living(engines) == 2
        assert (await gate.chat("hello", stream=stream))[0] == 200
        first, again = gate.records[0], gate.records[1]
        assert {attempt.outcome for attempt in first.attempts} == {"died"}
        assert (again.verdict, again.reason, again.status, again.attempts) == ("reject", "fatal_request", 422, ())
        assert value(gate.metrics, "engine_deaths_total") == 2
        assert value(gate.metrics, "fatal_requests_total", outcome="found") == 1
        assert value(gate.metrics, "fatal_requests_total", outcome="refused") >= 2


async def test_its_neighbours_are_answered_elsewhere() -> None:
    """Streams under way on engines that end are resumed, also twice; new requests are served."""
    slow: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "stream": True, "return_token_ids": True}
    async with fleet(3, inter_token_seconds=0.05) as (gate, engines):
        streams = [asyncio.create_task(gate.chat(f"neighbour {number}", **slow)) for number in range(9)]
        running = [one.worker.scheduler.running for one in engines]
        await until(lambda: sum(map(len, running)) == len(streams) and all(running))
        status, _, body = await gate.chat(POISON, stream=True)
        assert (status, code(body)) == (422, "fatal_request")
        assert living(engines) == 1
        for status, _, body in await asyncio.gather(*streams):
            *_, last, done = events(body)
            assert (status, done) == (200, b"[DONE]"), last
            assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert value(gate.metrics, "fatal_requests_total", outcome="found") == 1


async def test_who_waited_beside_it_twice_is_answered_all_the_same() -> None:
    """All of them are in doubt after the second death; one after the other is tried by itself."""
    async with fleet(4, max_num_seqs=1, inter_token_seconds=0.02) as (gate, engines):
        busy = [asyncio.create_task(gate.chat(f"busy {number}", max_tokens=40, ignore_eos=True)) for number in range(4)]
        await until(lambda: all(one.worker.scheduler.running for one in engines))
        beside = [asyncio.create_task(gate.chat(f"beside {number}")) for number in range(8)]
        await until(lambda: sum(len(one.worker.scheduler.waiting) for one in engines) == 8)
        status, _, body = await gate.chat(POISON)
        assert (status, code(body)) == (422, "fatal_request")
        assert living(engines) >= 1
        assert [status for status, _, _ in await asyncio.gather(*beside)] == [200] * 8
        await asyncio.gather(*busy)


async def test_unrelated_deaths_condemn_nobody_who_is_answered() -> None:
    async with fleet(3) as (gate, engines):
        for one in engines[:2]:
            one.lethal = "often asked"
            while not one.ended:
                assert (await gate.chat("often asked"))[0] == 200
        assert (await gate.chat("often asked"))[0] == 200
        assert value(gate.metrics, "engine_deaths_total") == 2
        assert value(gate.metrics, "fatal_requests_total", outcome="found") == 0


async def test_a_worker_that_was_told_to_go_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(3) as (gate, _):
        monkeypatch.setattr(gate.gateway._context.deaths, "serving", lambda _: False)
        await gate.chat(POISON)
        assert value(gate.metrics, "engine_deaths_total") == 0


async def test_prefill_workers_are_spared_as_well() -> None:
    async with AsyncExitStack() as stack:
        prefills = [Mortal(model=MODEL, api_key=WORKER_KEY, connector="nixl") for _ in range(3)]
        decodes = [nixl(), nixl()]
        for one in (*prefills, *decodes):
            await stack.enter_async_context(one)
        served = await stack.enter_async_context(split(prefills, decodes))
        served.report()
        for _ in range(2):
            status, _, body = await served.gate.chat(POISON)
            assert (status, code(body)) == (422, "fatal_request")
        assert living(prefills) == 1
        assert (await served.gate.chat("hello"))[0] == 200


async def test_the_finding_names_whose_it_is_and_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet(3) as (gate, _):
        await gate.chat(POISON)
        (refused,) = gate.gateway._context.deaths.refused()
        assert (refused.subject.model, refused.subject.tenant, refused.subject.decision) == (MODEL, "default", "d1")
        assert len(refused.workers) == 2
        assert 0 < refused.seconds <= 600
    assert any("engines ended" in record.message for record in caplog.records)
    assert POISON not in caplog.text


async def test_a_5xx_of_an_engine_that_lives_is_as_ever() -> None:
    async with engine() as one, engine() as two, front([one, two]) as gate:
        one.fail_next(500, 2)
        two.fail_next(500, 2)
        status, _, body = await gate.chat("hello")
        assert (status, code(body)) == (500, "500")
        assert {attempt.outcome for attempt in gate.records[-1].attempts} == {"server_error"}
        assert (await gate.chat("hello"))[0] in {200, 500}
        assert value(gate.metrics, "engine_deaths_total") == 0
