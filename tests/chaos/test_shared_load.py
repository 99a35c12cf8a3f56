"""Two replicas as processes: each counts what the other sends, and of one that is killed nothing is left."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from bench.soak_fleet import MODEL
from tests.chaos.parts.local_fleet import ChaosFleet, ReplicaPart, chaos_fleet, so
from tests.controlplane.store.postgresql import PostgreSQL
from tests.controlplane.waiting import task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GONE_SECONDS = 3.0


async def ask(fleet: ChaosFleet, replica: ReplicaPart, *, tokens: int) -> None:
    """A whole answer; one of 900 tokens takes seconds."""
    body = {"model": MODEL, "prompt": "a", "max_tokens": tokens, "ignore_eos": True}
    headers = {"authorization": f"Bearer {fleet.key}"}
    url = f"{replica.gateway}/v1/completions"
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=body) as answer:
        assert answer.status == 200
        await answer.read()


async def keep_asking(fleet: ChaosFleet, replica: ReplicaPart) -> None:
    """One long request after the other, also while the replica is away."""
    while True:
        with suppress(aiohttp.ClientError):
            await ask(fleet, replica, tokens=900)
        await asyncio.sleep(0.02)


async def counts(replica: ReplicaPart, own: int, others: int) -> bool:
    """Whether it has so many requests in flight, and knows of so many of others."""
    found = [await replica.metric(f"cachefleet_worker_{whose}_requests") for whose in ("inflight", "elsewhere")]
    return found == [own, others]


async def test_each_counts_what_the_other_sends_and_nothing_of_one_that_is_killed(
    tmp_path: Path, postgresql: PostgreSQL
) -> None:
    async with chaos_fleet(tmp_path, replicas=2, workers=2, database_url=postgresql.database()) as fleet:
        one, other = fleet.replicas
        asking = partial(keep_asking, fleet)
        async with task(asking(one)), task(asking(one)), task(asking(other)):
            await so(partial(counts, one, 2, 1))
            await so(partial(counts, other, 1, 2))
            one.part.kill()
            began = time.monotonic()
            await so(partial(counts, other, 1, 0))
            assert time.monotonic() - began < GONE_SECONDS
            one.part.start()
            await so(one.ready)
            await so(partial(counts, one, 2, 1))
            await so(partial(counts, other, 1, 2))
