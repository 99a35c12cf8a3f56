"""Conversations by handle while everything is killed under them: no answer is wrong and none fails.

Two workers of real vLLM, their agents, a control plane and its database. Each is killed, at whatever step the
turns under way are, in an order that a seed decides. Turns that the gateway could not take because it was dead are sent
again, as a client would; nothing else is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import pytest
from hypothesis import settings

from e2e.engine.fleet import READY_SECONDS, Up, is_gone, until
from e2e.engine.talk_client import Body, Said, ask
from e2e.engine.talk_fleet import BY_HANDLE, Reference, outcome, talk_fleet
from e2e.engine.talks import Talk
from tests.controlplane.store.postgresql import PostgreSQL, programs

CLIENTS: Final = 4
BETWEEN: Final = 15
"""Answers between two kills, and answers by handle after each; answers while the database is away."""
PAUSE_SECONDS: Final = 0.1
"""Of a client between two turns; others are under way meanwhile."""
TURN_SECONDS: Final = 0.06
"""What a turn takes, about: a kill comes within that time of a turn's beginning."""
SEED: Final = 1818
ROUNDS: Final = 3 if settings().max_examples > 500 else 1
"""In each of which every part is killed once."""

Away = Callable[[], AbstractContextManager[object]]
"""The database is away as long as this lasts."""


@pytest.fixture(scope="module", params=["postgresql", pytest.param("sqlite", marks=pytest.mark.slow)])
def fleet_and_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Up, Away]]:
    folder = tmp_path_factory.mktemp("continued-faults")
    with ExitStack() as stack:
        away, environment = partial(_locked, folder / "data"), {}
        if request.param == "postgresql":
            if not (found := programs()):
                pytest.skip("needs PostgreSQL's programs (apt-get install postgresql)")
            server = stack.enter_context(PostgreSQL(found))
            away, environment = partial(_stopped, server), {"CACHEFLEET_DATABASE_URL": server.database()}
        up = stack.enter_context(talk_fleet(folder, replicas=2, environment=environment))
        yield up, away


@contextlib.contextmanager
def _stopped(server: PostgreSQL) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[None]:
    """SQLite's file is another's alone."""
    (path,) = data.rglob("controlplane.db")
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.close()


@dataclass(slots=True)
class Clients:
    """Conversations at once until ``stop``; every turn and its answer."""

    fleet: Up
    http: aiohttp.ClientSession
    asked: list[tuple[Body, Said]] = field(default_factory=list)
    failed: list[object] = field(default_factory=list)
    by_handle: int = 0
    under_way: int = 0
    began: asyncio.Event = field(default_factory=asyncio.Event)
    """A turn has begun since it was cleared."""
    repeated: int = 0
    gateway_killed: bool = False
    stopped: bool = False
    _numbers: Iterator[int] = field(default_factory=count)

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        while not self.stopped:
            talk, said = Talk(next(self._numbers)), ""
            for _ in range(talk.steps):
                found = await asyncio.gather(*(self._turn(talk, body) for body in talk.step(said)))
                said = found[-1].content
                await asyncio.sleep(PAUSE_SECONDS)

    async def _turn(self, talk: Talk, body: Body) -> Said:
        self.under_way += 1
        self.began.set()
        try:
            said = await self._answered(talk, body)
        finally:
            self.under_way -= 1
        self.asked.append((body, said))
        if said.error:
            self.failed.append((said.error, body))
        self.by_handle += await outcome(self.http, self.fleet, said) == BY_HANDLE
        return said

    async def _answered(self, talk: Talk, body: Body) -> Said:
        """Asked again only where the gateway was killed meanwhile."""
        while True:
            may = self.gateway_killed
            try:
                said = await ask(self.http, self.fleet.gateway, body, {"x-cachefleet-session": talk.name})
            except aiohttp.ClientError as error:
                said = Said(0, (), "", (), repr(error))
            refused = said.status in (0, 503) or said.error == "cut short"
            if not (refused and (may or self.gateway_killed)):
                return said
            self.repeated += 1
            await asyncio.sleep(0.1)


class Killer:
    """Kills one part after the other."""

    def __init__(self, fleet: Up, clients: Clients, away: Away) -> None:
        self._fleet, self._clients, self._away = fleet, clients, away

    async def run(self) -> None:
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "engine": partial(self._engine, "talk-0"),
            "agent": partial(self._agent, "talk-1"),
            "gateway": self._gateway,
            "database": self._database,
        }
        kills, chance = list(parts.items()) * ROUNDS, random.Random(SEED)
        chance.shuffle(kills)
        for name, kill in kills:
            await self._served(BETWEEN)
            self._clients.began.clear()
            await self._clients.began.wait()
            await asyncio.sleep(chance.uniform(0, TURN_SECONDS))
            busy = self._clients.under_way
            await kill()
            await self._until(lambda: self._fleet.live(2), READY_SECONDS)
            await self._served(BETWEEN)
            print(f"{name} killed with {busy} turns under way, {len(self._clients.asked)} answered so far", flush=True)

    async def _engine(self, worker: str) -> None:
        engine = self._fleet.engine(worker)
        engine.kill()
        await self._until(lambda: is_gone(engine))
        await self._until(lambda: not _worker(self._fleet, worker)["ready"])

    async def _agent(self, worker: str) -> None:
        (agent,) = [one for one in self._fleet.below("cachefleet_worker.agent") if _of(one) == worker]
        agent.kill()
        await self._until(lambda: [one for one in self._fleet.below("cachefleet_worker.agent") if _of(one) == worker])

    async def _gateway(self) -> None:
        (control_plane,) = self._fleet.below("cachefleet_controlplane")
        self._clients.gateway_killed = True
        control_plane.kill()
        await self._until(lambda: is_gone(control_plane))
        await self._until(lambda: self._fleet.live(2), READY_SECONDS)
        self._clients.gateway_killed = False

    async def _database(self) -> None:
        with self._away():
            answers = len(self._clients.asked) + BETWEEN
            await self._until(lambda: len(self._clients.asked) >= answers)

    async def _served(self, more: int) -> None:
        """So many answers more, and by handle as many."""
        answers, by_handle = len(self._clients.asked) + more, self._clients.by_handle + more
        await self._until(lambda: len(self._clients.asked) >= answers and self._clients.by_handle >= by_handle)

    async def _until(self, condition: Callable[[], object], seconds: float = 120.0) -> None:
        await asyncio.to_thread(until, condition, seconds, "in time", self._fleet)


@pytest.mark.requirement("A16")
async def test_a9_nothing_is_wrong_or_fails_whatever_is_killed(fleet_and_database: tuple[Up, Away]) -> None:
    fleet, away = fleet_and_database
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        clients = Clients(fleet, http)
        talking = asyncio.create_task(clients.run())
        try:
            await Killer(fleet, clients, away).run()
        finally:
            clients.stopped = True
            await talking
        wrong = await _wrong(fleet, http, clients.asked)
    print(f"{len(clients.asked)} answers, {clients.by_handle} known to be by handle, {clients.repeated} asked again")
    assert clients.failed == []
    assert wrong == []


async def _wrong(fleet: Up, http: aiohttp.ClientSession, asked: list[tuple[Body, Said]]) -> list[object]:
    """Answers that are not a worker's own to the whole history."""
    reference, left, wrong = Reference(http, fleet), iter(asked), list[object]()

    async def client() -> None:
        for body, said in left:
            if expected := await reference.differing(body, said):
                wrong.append((said, expected, body))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return wrong


def _worker(fleet: Up, name: str) -> dict[str, Any]:
    return next((worker for worker in fleet.workers() if worker["name"] == name), {"ready": False})


def _of(agent: psutil.Process) -> str:
    with suppress(psutil.Error):  # it has ended just now
        return str(agent.environ().get("CACHEFLEET_WORKER", ""))
    return ""
