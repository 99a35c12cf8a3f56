"""A control plane that stands still, is asked for too much, or sees workers come and go: rows 9, 25 and 30."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import count
from pathlib import Path
from statistics import quantiles

import aiohttp
import pytest

from bench.soak_fleet import MODEL
from tests.chaos.measurements import measured
from tests.chaos.parts.invariants import GROWTH_MIB, MIB, Scenario
from tests.chaos.parts.local_fleet import ADMIN, ChaosFleet, Json, ReplicaPart, chaos_fleet, so
from tests.controlplane.waiting import task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STOPPED_SECONDS = 60
OVERLOAD_SECONDS = 60
PROMPT_CHARACTERS = 1024
AT_ONCE = 12
"""Requests at once that have room."""
CHURN_SECONDS = 600
A_MINUTE = 200


async def test_a_replica_that_stands_still_while_blocks_change(tmp_path: Path) -> None:
    """Ten times the events of the scenarios' load, straight at the engines; these are never held up."""
    async with chaos_fleet(tmp_path) as fleet:
        (replica,), scenario = fleet.replicas, Scenario(fleet)
        async with scenario.loaded():
            await scenario.answered(50)
        agents = {name: worker.agent.memory() for name, worker in fleet.workers.items()}
        usual = await _asked_directly(fleet, seconds=10)
        with replica.part.hung():
            meanwhile = await _asked_directly(fleet, seconds=STOPPED_SECONDS)
        began = time.monotonic()
        await so(fleet.agreed)
        measured(9, "index exact after a minute's standstill", time.monotonic() - began, at_most=10)
        measured(
            9, "engines' answers a second meanwhile, against before", 100 * meanwhile / usual, unit="%", at_least=80
        )
        growth = max(worker.agent.memory() - agents[name] for name, worker in fleet.workers.items()) / MIB
        measured(9, "agents' memory, more by", growth, unit="MiB", at_most=32)
        await scenario.hold()


async def _asked_directly(fleet: ChaosFleet, *, seconds: float) -> float:
    """Requests a second that engines answer, each with ten new blocks."""
    counted, end, began = Counter[str](), time.monotonic() + seconds, time.monotonic()

    async def ask(name: str, client: int) -> None:
        worker = fleet.workers[name]
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {worker.key}"}) as http:
            while time.monotonic() < end:
                counted[name] += 1
                text = f"{name} {client} {counted[name]} {began}" + "x" * 130
                body = {"model": MODEL, "prompt": text, "max_tokens": 1}
                async with http.post(f"{worker.url}/v1/completions", json=body) as answer:
                    assert answer.status == 200
                    await answer.read()
                await asyncio.sleep(0.1)

    await asyncio.gather(*(ask(name, client) for name in fleet.workers for client in range(2)))
    return counted.total() / (time.monotonic() - began)


class Flood:
    """Clients that ask one after the other, each as soon as it is answered; a refused one waits as it is told."""

    def __init__(self, replica: ReplicaPart, key: str) -> None:
        self._url = f"{replica.gateway}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}"}
        self.accepted: list[float] = []
        self.refused = 0
        self.others = Counter[str]()

    async def ask(self, http: aiohttp.ClientSession, number: int) -> None:
        began = time.monotonic()
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{number} {began} " + "x" * (PROMPT_CHARACTERS - 80)}],
            "max_tokens": 16,
        }
        try:
            async with http.post(self._url, json=body | {"ignore_eos": True}) as answer:
                told = await answer.read()
        except aiohttp.ClientError as error:
            self.others[repr(error)] += 1
            return
        if answer.status == 200:
            self.accepted.append(time.monotonic() - began)
        elif answer.status in {429, 503} and "retry-after" in answer.headers:
            self.refused += 1
            await asyncio.sleep(min(1.0, float(answer.headers["retry-after"])))
        else:
            self.others[f"{answer.status} {told[:200]!r}"] += 1

    async def run(self, clients: int, seconds: float) -> float:
        """Requests answered with 200 a second."""
        end, began, before = time.monotonic() + seconds, time.monotonic(), len(self.accepted)

        async def client(http: aiohttp.ClientSession, number: int) -> None:
            while time.monotonic() < end:
                await self.ask(http, number)

        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=self._headers) as http:
            await asyncio.gather(*(client(http, number) for number in range(clients)))
        return (len(self.accepted) - before) / (time.monotonic() - began)


def _p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100)[-1]


async def test_ten_times_its_capacity(tmp_path: Path) -> None:
    """Two engines that hold eight of these requests each and take their time: nobody may wait for room."""
    engine = {"num-blocks": 8 * (PROMPT_CHARACTERS // 16 + 4), "inter-token-seconds": 0.02}
    async with chaos_fleet(tmp_path, engine=engine, spec=["admission: {maxQueueSeconds: 0}"]) as fleet:
        (replica,), scenario = fleet.replicas, Scenario(fleet)
        usual, flood, after = (Flood(replica, fleet.key) for _ in range(3))
        capacity = await usual.run(AT_ONCE, 15)
        memory = replica.part.memory()
        rate = await flood.run(10 * AT_ONCE, OVERLOAD_SECONDS)
        memory = replica.part.memory() - memory
        await after.run(AT_ONCE, 10)
        assert not usual.others | flood.others | after.others
        assert flood.refused > len(flood.accepted)
        baseline = _p99(usual.accepted)
        measured(25, "answered a second, against capacity", 100 * rate / capacity, unit="%", at_least=80)
        measured(25, "refused with 429 or 503 and Retry-After", flood.refused, unit="", at_least=1)
        measured(25, "p99 of the accepted, against before", _p99(flood.accepted) / baseline, unit="times", at_most=2)
        measured(
            25, "p99 in the ten seconds after, against before", _p99(after.accepted) / baseline, unit="times", at_most=2
        )
        measured(25, "memory, more by", memory / MIB, unit="MiB", at_most=GROWTH_MIB)
        await scenario.hold()


async def test_workers_that_come_and_go(tmp_path: Path) -> None:
    """Listed for some seconds each, and asked meanwhile: what is kept of each is gone with it."""
    async with chaos_fleet(tmp_path) as fleet:
        (replica,), scenario = fleet.replicas, Scenario(fleet)
        async with scenario.loaded(rate=10):
            before = await _kept(replica)
            async with task(_churn(fleet)):
                await asyncio.sleep(CHURN_SECONDS)  # so long they come and go
            fleet.others_listed = []
            await so(fleet.all_ready)

            async def settled() -> bool:
                now = await _kept(replica)
                return all(now[name] <= before[name] + slack for name, slack in SLACK.items())

            began = time.monotonic()
            await so(settled)
            measured(30, "tasks, files and series as before, after", time.monotonic() - began, at_most=60)
        assert scenario.failed == 0, (dict(scenario.tally.failures), scenario.tally.examples)
        await scenario.hold()


SLACK = {"tasks": 5, "files": 20, "series": 50}


async def _kept(replica: ReplicaPart) -> dict[str, int]:
    told = (await replica.get("/readyz"))[1]
    async with aiohttp.ClientSession(headers=ADMIN) as http, http.get(f"{replica.internal}/metrics") as answer:
        series = sum(not line.startswith("#") for line in (await answer.text()).splitlines())
    tasks = told["tasks"] - told["requests_under_way"]
    return {"tasks": tasks, "files": replica.part.descriptors(), "series": series}


async def _churn(fleet: ChaosFleet) -> None:
    """List a worker more each 60/A_MINUTE seconds, twenty at once at most."""
    for number in count(1):
        fleet.others_listed = [_short_lived(fleet, one) for one in range(max(0, number - 20), number)]
        await fleet.list_workers()
        await asyncio.sleep(60 / A_MINUTE)


def _short_lived(fleet: ChaosFleet, number: int) -> Json:
    """Every other one is ready: an engine of the fleet under another name, so that it answers."""
    engines = list(fleet.workers.values())
    return {"name": f"gone-{number}", "url": engines[number % len(engines)].url, "ready": number % 2 == 0}
