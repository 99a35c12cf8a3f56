"""What holds after every fault: Sound, Available, Isolated, Convergent, Bounded; asserted of the whole fleet.

Sound: an engine serves from its cache at least what was predicted of it. Available: no request failed, but for what its
scenario names. Isolated: what one tenant has cached is as new to another. Convergent: each replica holds of each worker
what its engine does. Bounded: memory, descriptors and requests under way are what they were.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from bench.soak_fleet import MODEL
from bench.soak_load import BORNE, Load, Tally
from tests.chaos.parts.local_fleet import ChaosFleet, ReplicaPart, so
from tests.controlplane.waiting import task

MIB: Final = 1024 * 1024
GROWTH_MIB: Final = 48.0
"""Caches that fill are no leak; a row that says more has its own bound."""
IN_FLIGHT: Final = "prefix_in_flight"
DESCRIPTORS: Final = 40
"""Kept connections to workers and agents, which come and go."""
KEPT_SECONDS: Final = 15.0
"""Then the many that a burst has left are closed: one to a worker waits 4 s for its next request."""


@dataclass(slots=True)
class Scenario:
    """A fleet under load."""

    fleet: ChaosFleet
    tally: Tally = field(default_factory=Tally)
    growth_mib: float = GROWTH_MIB
    _before: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Requests that failed and should not have."""
        return self.tally.faults

    @property
    def borne(self) -> int:
        """Streams that broke with their worker and that nobody else could go on with."""
        return self.tally.failures[BORNE]

    async def answered(self, more: int = 30) -> None:
        """Wait until so many more requests have ended."""
        wanted = self.tally.ended + more

        async def ended() -> bool:
            return self.tally.ended >= wanted

        await so(ended)

    @asynccontextmanager
    async def loaded(self, *, url: str = "", rate: float = 20.0, seed: int = 1) -> AsyncIterator[Scenario]:
        """Requests of every API at a rate, each answer checked whole; at the end all that are open have ended."""
        headers = {"authorization": f"Bearer {self.fleet.key}"}
        load = Load(url or self.fleet.replicas[0].gateway, self.fleet.workers, seed=seed)
        load.tally = self.tally
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as http:
            async with task(load.steadily(http, rate=rate, seconds=3600)):
                await self.answered()
                self._before = {one.part.name: _holdings(one) for one in self.fleet.replicas}
                yield self
            await load.finish()

    async def hold(self) -> None:
        """Assert all five, of a fleet that is at rest by now."""
        unready = {worker.name: dict(worker.unready) for worker in self.fleet.workers.values()}
        assert self.failed == 0, (dict(self.tally.failures), self.tally.examples, unready)
        await so(self.fleet.agreed)
        for replica in self.fleet.replicas:
            await _sound_and_isolated(replica, self.fleet)
        await so(self.fleet.agreed)
        for replica in self.fleet.replicas:
            await self._bounded(replica)
            status, told = await replica.get("/readyz")
            assert (status, told["requests_under_way"]) == (200, 0)

    def forget(self, replica: ReplicaPart) -> None:
        """It was started anew: what it held before says nothing of it."""
        self._before.pop(replica.part.name, None)

    async def _bounded(self, replica: ReplicaPart) -> None:
        if (before := self._before.get(replica.part.name)) is None:
            return
        await asyncio.sleep(0 if _holdings(replica)[1] - before[1] <= DESCRIPTORS else KEPT_SECONDS)
        memory, descriptors = (now - then for now, then in zip(_holdings(replica), before, strict=True))
        assert memory <= self.growth_mib * MIB, f"{memory / MIB:.0f} MiB more"
        assert descriptors <= DESCRIPTORS, f"{descriptors} files more"


async def _sound_and_isolated(replica: ReplicaPart, fleet: ChaosFleet) -> None:
    """A prompt that its tenant has asked before is predicted and served; to another tenant it is new."""
    text = f"{uuid.uuid4().hex} is what {replica.part.name} is asked for now and never before. " * 8
    await _ask(replica, fleet.key, text)
    await so(fleet.agreed)
    while (own := await _ask(replica, fleet.key, text))["reason"] == IN_FLIGHT:  # noqa: ASYNC110 - its blocks are reported soon
        await asyncio.sleep(0.1)
    others = await _ask(replica, fleet.other, text)
    assert 0 < own["predictedTokens"] <= own["cachedTokens"], own
    assert (others["predictedTokens"], others["cachedTokens"]) == (0, 0), others


async def _ask(replica: ReplicaPart, key: str, text: str) -> dict[str, Any]:
    """The record of the decision on a chat."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    headers = {"authorization": f"Bearer {key}"}
    url = f"{replica.gateway}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        number = answer.headers["x-cachefleet-decision"]
    record: dict[str, Any] = {}

    async def recorded() -> bool:
        status, told = await replica.get(f"/admin/v1/decisions/{number}")
        record.update(told if status == 200 else {})
        return status == 200 and told.get("cachedTokens") is not None

    await so(recorded)
    return record


def _holdings(replica: ReplicaPart) -> tuple[int, int]:
    return replica.part.memory(), replica.part.descriptors()
