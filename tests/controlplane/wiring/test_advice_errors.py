"""Advice over the whole control plane: a pool gets a second worker; what was foretold is compared with what came."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from cachefleet_controlplane.capacity.size_changes import SettlingBounds, SizeChange
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from tests.controlplane.gateway.harness import POOL, Front, engine
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_control_plane import Plane, running
from tests.fakes.engine import FakeEngine

PROMPTS = [f"{number} " + f"word{number} " * 60 for number in range(8)]
SETTLING = SettlingBounds(fill_requests=16, fill_seconds=0.0, measured_requests=24, measured_seconds=0.0)
BOUNDS = ReplicaBounds(
    pool_file_poll_seconds=0.02, connect_seconds=30, store_seconds=30, capacity_seconds=0.0, settling=SETTLING
)


class Pool:
    """A replica's pool, whose agents the test plays."""

    def __init__(self, made: Plane, http: aiohttp.ClientSession, folder: Path) -> None:
        plane = made.plane
        context = plane._context
        self._plane, self._folder, self._random = plane, folder, Random(7)
        self._gate = Front(
            made.gateway, plane.gateway, plane.fleet, plane.metrics, http, context.fingerprints, context.queue
        )

    async def has(self, *workers: FakeEngine) -> None:
        """Give it these workers, and look at it."""
        self._gate.engines = workers
        listed = [{"name": one.name, "url": one.url, "ready": True} for one in self._gate.endpoints()]
        (self._folder / "endpoints.json").write_text(json.dumps({POOL: listed}))
        await until(lambda: len(self._plane.fleet.view().workers) == len(workers))
        self.report()
        self._plane.history.advice.tick()

    async def rounds(self, times: int) -> tuple[int, int]:
        """Ask so many times as many prompts, look at the pool; tokens that engines looked up meanwhile, and found."""
        before = self._counted()
        for text in self._random.choices(PROMPTS, k=times * len(PROMPTS)):
            status, _, body = await self._gate.chat(text)
            assert status == 200, body
            self.report()
        self._plane.history.advice.tick()
        queries, hits = (now - then for now, then in zip(self._counted(), before, strict=True))
        return queries, hits

    def pending(self) -> SizeChange:
        record = self._plane.history.advice.of(POOL)
        assert record is not None
        assert record.changes.pending is not None
        return record.changes.pending

    def report(self) -> None:
        """What the agents say of their engines now."""
        for number in range(len(self._gate.engines)):
            self._gate.report(number, prefill_tokens_per_second=1000.0, **self._gate.load(number))

    def _counted(self) -> tuple[int, int]:
        counters = [one.worker.scheduler.counters for one in self._gate.engines if isinstance(one, FakeEngine)]
        return sum(one.queries for one in counters), sum(one.hits for one in counters)


async def told(made: Plane) -> dict[str, Any]:
    _, body = await made.get(f"/admin/v1/capacity?pool={POOL}", "for-people")
    [one] = json.loads(body)["items"]
    return dict(one)


async def error_metric(made: Plane) -> float:
    scraped = (await made.get("/metrics", "for-people"))[1].decode()
    [error] = re.findall(r'^cachefleet_pool_advice_hit_ratio_error{pool="default/demo"} (\S+)$', scraped, re.MULTILINE)
    return float(error)


async def test_what_was_foretold_for_a_second_worker_is_compared_with_what_came(tmp_path: Path) -> None:
    async with (
        engine(num_blocks=150) as first,
        engine(num_blocks=150) as second,
        aiohttp.ClientSession() as http,
        running(tmp_path, first, bounds=BOUNDS) as made,
    ):
        pool = Pool(made, http, tmp_path)
        await pool.has(first)
        alone, found_alone = await pool.rounds(8)
        await pool.has(first, second)
        foretold = pool.pending().foretold.hit_ratio
        await pool.rounds(2)
        queries, hits = await pool.rounds(3)
        one = await told(made)
        [change] = one["changes"]
        assert (change["phase"], change["before"]["workers"], change["foretold"]["workers"]) == ("judged", 1, 2)
        assert min(found_alone, hits) > 0
        assert change["before"]["hitRatio"] == pytest.approx(found_alone / alone, abs=1e-3)
        assert change["hitRatio"] == pytest.approx(hits / queries)
        assert change["error"] == pytest.approx(foretold - hits / queries)
        assert await error_metric(made) == pytest.approx(change["error"])
        assert one["desiredFit"] is not None
