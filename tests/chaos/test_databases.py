"""Stores that are locked, full, killed, hung, or put back to what they were: rows 12 and 13."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import psycopg
import pytest

from bench.soak_fleet import MODEL
from tests.chaos.measurements import measured
from tests.chaos.parts.invariants import Scenario
from tests.chaos.parts.local_fleet import ChaosFleet, ReplicaPart, chaos_fleet, so
from tests.controlplane.store.postgresql import PostgreSQL
from tests.controlplane.waiting import task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LOCKED_SECONDS = 30
HUNG_SECONDS = 20
LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process has the file's write lock."""
    command = [sys.executable, "-c", LOCK, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            other.communicate()


class Writes:
    """A client of the admin API that makes tenants until it is told to stop, and notes what was acknowledged."""

    def __init__(self, replica: ReplicaPart) -> None:
        self._replica = replica
        self.made: list[str] = []
        self.refused = 0
        self.longest = 0.0
        """Seconds that a refusal took."""

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            await self.write(f"{self._replica.part.name}-{number}")
            await asyncio.sleep(0.2)

    async def write(self, name: str) -> int:
        """The status, 0 where the replica goes; a refusal is a 503 that says when to come again."""
        began = time.monotonic()
        try:
            status, headers, _ = await self._replica.post("/tenants", {"name": name})
        except aiohttp.ClientError:
            return 0
        if status == 201:
            self.made.append(name)
        else:
            assert status == 503, status
            assert 1 <= int(headers["retry-after"]) <= 2
            self.refused += 1
            self.longest = max(self.longest, time.monotonic() - began)
        return status


async def _tenants(replica: ReplicaPart) -> set[str]:
    status, told = await replica.get("/admin/v1/tenants")
    return {one["name"] for one in told["items"]} if status == 200 else set()


async def _writes_again(writes: Writes) -> bool:
    return await writes.write(f"again-{time.monotonic()}") == 201


async def test_a_locked_database(tmp_path: Path) -> None:
    async with chaos_fleet(tmp_path) as fleet:
        (replica,), scenario = fleet.replicas, Scenario(fleet)
        writes = Writes(replica)
        async with scenario.loaded(), task(writes.run()):
            await so(lambda: _made(writes, 3))
            with locked(tmp_path / "data-0" / "controlplane.db"):
                before = scenario.tally.ended
                await asyncio.sleep(LOCKED_SECONDS)  # so long it is locked
                measured(
                    12,
                    "requests answered a second while locked",
                    (scenario.tally.ended - before) / LOCKED_SECONDS,
                    unit="",
                    at_least=10,
                )
                assert "umbrella" in await _tenants(replica)  # reads are served
            assert writes.refused > 0
            measured(12, "a refused write answered", writes.longest, at_most=5)
            await so(lambda: _writes_again(writes))
        assert set(writes.made) <= await _tenants(replica)
        await scenario.hold()
        await so(lambda: _all_recorded(replica, tmp_path / "data-0", scenario))
        assert await replica.metric("cachefleet_store_dropped_total") == 0


async def _made(writes: Writes, count: int) -> bool:
    return len(writes.made) >= count


async def _all_recorded(replica: ReplicaPart, folder: Path, scenario: Scenario) -> bool:
    """Each request that reached a worker has its decision in the store."""
    with closing(sqlite3.connect(folder / "controlplane.db")) as database:
        (count,) = database.execute("select count(*) from decisions").fetchone()
    routed = scenario.tally.ended - scenario.tally.kinds["route"] - scenario.tally.kinds["count tokens"]
    return bool(count >= routed)


@dataclass(frozen=True, slots=True)
class Shared:
    """Two replicas on one PostgreSQL under load, with a client of the admin API at each."""

    fleet: ChaosFleet
    scenario: Scenario
    writes: tuple[Writes, Writes]

    async def refused(self) -> None:
        """Until each replica has refused a change; requests are answered meanwhile."""
        before = [one.refused for one in self.writes]
        await so(lambda: _all(one.refused > count for one, count in zip(self.writes, before, strict=True)))
        await self.scenario.answered(100)

    async def mended(self, what: str) -> None:
        """Measure until each replica takes changes again, and knows the same tenants: all that were acknowledged."""
        began = time.monotonic()
        for one in self.writes:
            await so(partial(_writes_again, one))
        measured(13, f"changes taken again after PostgreSQL {what}", time.monotonic() - began, at_most=15)
        await so(self.agree)

    async def agree(self) -> bool:
        """Whether both replicas know all tenants whose making was acknowledged, and no other."""
        made = {name for one in self.writes for name in one.made}
        told = [await _tenants(replica) for replica in self.fleet.replicas]
        return told[0] == told[1] and made <= told[0]


async def _all(conditions: Iterable[bool]) -> bool:
    return all(conditions)


@asynccontextmanager
async def shared(folder: Path, server: PostgreSQL) -> AsyncIterator[Shared]:
    """At the end no request has failed, and the invariants hold."""
    async with chaos_fleet(folder, replicas=2, database_url=server.database()) as fleet:
        scenario = Scenario(fleet)
        writes = Writes(fleet.replicas[0]), Writes(fleet.replicas[1])
        async with scenario.loaded(), task(writes[0].run()), task(writes[1].run()):
            for one in writes:
                await so(partial(_made, one, 2))
            yield Shared(fleet, scenario, writes)
        measured(13, "requests failed meanwhile", scenario.failed, unit="", at_most=0)
        await scenario.hold()


async def test_a_postgresql_that_is_killed(tmp_path: Path, postgresql: PostgreSQL) -> None:
    async with shared(tmp_path, postgresql) as two:
        postgresql.kill()
        try:
            await two.refused()
        finally:
            postgresql.start()
        await two.mended("was killed and started")


async def test_a_postgresql_that_hangs(tmp_path: Path, postgresql: PostgreSQL) -> None:
    """A replica that starts meanwhile takes no traffic; those that knew the tenants serve them."""
    async with shared(tmp_path, postgresql) as two:
        other = two.fleet.replicas[1]
        with postgresql.hung():
            await two.refused()
            other.part.kill()
            other.part.start()
            two.scenario.forget(other)
            await asyncio.sleep(HUNG_SECONDS)  # so long it hangs
            assert not await other.ready()
        await so(other.ready)
        await two.mended("hung")
        longest = max(one.longest for one in two.writes)
        measured(13, "a change refused while it hung, answered", longest, at_most=15)


async def test_a_postgresql_put_back_from_a_dump(tmp_path: Path, postgresql: PostgreSQL) -> None:
    """As an administrator would, under load: what was made after the dump is gone in both, its keys open nothing."""
    async with shared(tmp_path, postgresql) as two:
        url = two.fleet.database_url
        one, other = two.fleet.replicas
        key = await two.fleet.tenant("before")
        dump = postgresql.dump(url)
        late = await two.fleet.tenant("after")
        await so(partial(_serves, other, late, status=200))
        began = time.monotonic()
        postgresql.restore(dump)
        for replica in (one, other):
            await so(partial(_serves, replica, late, status=401))
        measured(13, "as in the dump, in both replicas, after it was put back", time.monotonic() - began, at_most=10)
        for replica in (one, other):
            assert await _serves(replica, key, status=200)
        for writes in two.writes:
            writes.made.clear()
        await two.mended("was put back")


async def _serves(replica: ReplicaPart, key: str, *, status: int) -> bool:
    """Whether a request with an API key is answered so."""
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as http,
        http.post(f"{replica.gateway}/v1/completions", json=body) as answer,
    ):
        await answer.read()
        return answer.status == status


async def test_replicas_that_start_together_migrate_once(tmp_path: Path, postgresql: PostgreSQL) -> None:
    url = postgresql.database()
    async with chaos_fleet(tmp_path, replicas=3, workers=1, database_url=url) as fleet:
        with psycopg.connect(url) as connection:
            assert connection.execute("select count(*) from alembic_version").fetchone() == (1,)
        for replica in fleet.replicas:
            assert await replica.metric("cachefleet_store_errors_total") == 0
            assert {"acme", "umbrella"} <= await _tenants(replica)
