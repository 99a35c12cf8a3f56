"""Two replicas under traffic: one goes, and no client notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from cachefleet_core.report_frames import SUBPROTOCOL
from tests.controlplane.gateway.harness import chat, engine
from tests.controlplane.replicas import FakeService, Replica, Traffic, replica
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

LATE_SECONDS = 1.0
"""How long the fake Service still sends new connections to a replica that is not ready."""


@asynccontextmanager
async def two_replicas(folder: Path, worker: FakeEngine, **settings: object) -> AsyncIterator[tuple[Replica, Replica]]:
    workers = {"demo-0": worker}
    async with (
        replica(folder, "a", workers, **settings) as one,
        replica(folder, "b", workers, **settings) as other,
    ):
        yield one, other


async def test_a_replica_that_goes_costs_no_request(tmp_path: Path) -> None:
    async with (
        engine(inter_token_seconds=0.02) as worker,
        two_replicas(tmp_path, worker, withdraw_seconds=5) as (one, other),
        FakeService([one, other], late=LATE_SECONDS).running() as service,
        Traffic(service.url).flowing() as traffic,
    ):
        await until(lambda: traffic.answered >= 30)
        service.told_of_end(one)
        one.end()
        async with asyncio.timeout(60):
            assert await one.process.wait() == 0
        before = traffic.answered
        await until(lambda: traffic.answered >= before + 30)
        assert traffic.failures == []
    assert traffic.failures == []


async def test_one_that_is_killed_costs_only_what_was_under_way_there(tmp_path: Path) -> None:
    clients = 6
    async with (
        engine(inter_token_seconds=0.02) as worker,
        two_replicas(tmp_path, worker) as (one, other),
        FakeService([one, other], late=0.2).running() as service,
    ):
        async with Traffic(other.gateway).flowing(clients) as traffic:
            await until(lambda: traffic.answered >= 10)
            one.process.kill()
            await one.process.wait()
            before = traffic.answered
            await until(lambda: traffic.answered >= before + 30)
        assert traffic.failures == []
        await asyncio.sleep(LATE_SECONDS)  # so long a Service may send to who is gone, which no client can be spared
        async with Traffic(service.url).flowing(clients) as traffic:
            await until(lambda: traffic.answered >= 30)
        assert traffic.failures == []


async def test_what_it_says_on_its_way_out(tmp_path: Path) -> None:
    """Not ready at once, still serving, every connection ended with its answer, agents told last."""
    async with (
        engine(inter_token_seconds=0.2) as worker,
        replica(tmp_path, "a", {"demo-0": worker}, withdraw_seconds=8, report_hello_seconds=60) as one,
        aiohttp.ClientSession() as http,
    ):
        headers = {"authorization": "Bearer for-agents"}
        agent = await http.ws_connect(f"{one.internal}/v1/reports", protocols=[SUBPROTOCOL], headers=headers)
        url = f"{one.gateway}/v1/chat/completions"
        async with http.post(url, json=chat("x", max_tokens=1)) as answer:
            assert (answer.status, "connection" in answer.headers) == (200, False)
        long = asyncio.create_task(_whole(url, max_tokens=15))
        await until(lambda: len(worker.requests) >= 2)
        one.end()
        while await one.ready():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
        async with http.get(f"{one.internal}/readyz") as answer:
            told = json.loads(await answer.read())
        assert (answer.status, told["ready"], told["draining"]) == (503, False, True)
        async with http.post(url, json=chat("x", max_tokens=1)) as answer:  # on the kept connection
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        async with http.post(url, json=chat("x", max_tokens=1)) as answer:  # on a new one
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        status, body = await long
        assert (status, b'"completion_tokens":15' in body) == (200, True)
        assert not agent.closed
        async with asyncio.timeout(60):
            assert (await agent.receive()).type is aiohttp.WSMsgType.CLOSE
        assert agent.close_code == 1012  # the server restarts: come again
        assert await one.process.wait() == 0


async def _whole(url: str, *, max_tokens: int) -> tuple[int, bytes]:
    body = chat("a long one", max_tokens=max_tokens, ignore_eos=True)
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        return answer.status, await answer.read()
