"""Two replicas under traffic: one goes, and no client notices."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp

from cachefleet_core.report_frames import SUBPROTOCOL, encode
from tests.controlplane.frames import hello
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
        replica(tmp_path, "a", {"demo-0": worker}, withdraw_seconds=8) as one,
        aiohttp.ClientSession() as http,
    ):
        headers = {"authorization": "Bearer for-agents"}
        agent = await http.ws_connect(f"{one.internal}/v1/reports", protocols=[SUBPROTOCOL], headers=headers)
        await agent.send_bytes(encode(hello("demo-0")))
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
            async for _ in agent:
                pass
        assert agent.close_code == 1012  # the server restarts: come again
        assert await one.process.wait() == 0


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
LONG: dict[str, dict[str, Any]] = {
    CHAT: chat("a long one", max_tokens=3000, ignore_eos=True),
    MESSAGES: {"model": "fake", "max_tokens": 3000, "messages": [{"role": "user", "content": "a long one"}]},
    RESPONSES: {"model": "fake", "max_output_tokens": 3000, "input": "a long one"},
}


async def test_what_is_not_finished_in_time_ends_with_a_word(tmp_path: Path) -> None:
    """Streams with each API's error event, whole answers with a 503 in its shape, and all of them are on record."""
    settings = {"withdraw_seconds": 0, "drain_seconds": 1}
    async with (
        engine(inter_token_seconds=0.05, natural_tokens=3000, num_blocks=4096) as worker,
        replica(tmp_path, "a", {"demo-0": worker}, **settings) as one,
    ):
        begun: list[int] = []
        streams = {
            path: asyncio.create_task(_asked(one.gateway + path, body, stream=True, begun=begun.append))
            for path, body in LONG.items()
        }
        wholes = {path: asyncio.create_task(_asked(one.gateway + path, body)) for path, body in LONG.items()}
        await until(lambda: len(worker.worker.scheduler.running) == 6 and begun == [200] * 3)
        one.end()
        async with asyncio.timeout(60):
            streamed = {path: await task for path, task in streams.items()}
            whole = {path: await task for path, task in wholes.items()}
            assert await one.process.wait() == 0
    _refused(whole)
    _broken(streamed)
    recorded = _recorded(tmp_path / "a")
    assert sorted(status for status, _ in recorded) == [200] * 3 + [503] * 3
    assert all("restarted" in attempts and "cancelled" not in attempts for _, attempts in recorded)


Answers = dict[str, tuple[int, dict[str, str], bytes]]


def _refused(whole: Answers) -> None:
    """Each has the shape of its API, and says when to ask again."""
    for status, headers, _ in whole.values():
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert headers["content-type"] == "application/json"
    said = {path: json.loads(body) for path, (_, _, body) in whole.items()}
    assert said[CHAT]["error"]["code"] == said[RESPONSES]["error"]["code"] == "server_restarting"
    assert said[MESSAGES]["error"]["type"] == "overloaded_error"


def _broken(streamed: Answers) -> None:
    """Each ends with the error event of its API."""
    assert {status for status, _, _ in streamed.values()} == {200}
    *_, error, done = streamed[CHAT][2].split(b"\n\n")[:-1]
    assert (json.loads(error[6:])["error"]["code"], done) == ("server_restarting", b"data: [DONE]")
    name, _, data = streamed[MESSAGES][2].split(b"\n\n")[-2].partition(b"\n")
    assert (name, json.loads(data[6:])["error"]["type"]) == (b"event: error", "overloaded_error")
    name, _, data = streamed[RESPONSES][2].split(b"\n\n")[-2].partition(b"\n")
    last = json.loads(data[6:])
    assert (name, last["code"]) == (b"event: error", "server_restarting")
    assert last["sequence_number"] == len(streamed[RESPONSES][2].split(b"\n\n")) - 2


def _recorded(folder: Path) -> list[tuple[int, str]]:
    """Status and attempts of each decision in a replica's store."""
    with closing(sqlite3.connect(folder / "controlplane.db")) as database:
        return list(database.execute("select status, legs from decisions"))


async def _asked(
    url: str, body: dict[str, Any], *, stream: bool = False, begun: Callable[[int], object] = bool
) -> tuple[int, dict[str, str], bytes]:
    """The whole answer; ``begun`` is told its status as soon as it begins."""
    async with aiohttp.ClientSession() as http, http.post(url, json=body | {"stream": stream}) as answer:
        begun(answer.status)
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.read()


async def _whole(url: str, *, max_tokens: int) -> tuple[int, bytes]:
    body = chat("a long one", max_tokens=max_tokens, ignore_eos=True)
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        return answer.status, await answer.read()
