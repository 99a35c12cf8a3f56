"""A replica and a worker's agent that do not reach each other, while requests reach the worker: row 20."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.chaos.measurements import measured
from tests.chaos.parts.invariants import Scenario
from tests.chaos.parts.local_fleet import ReplicaPart, chaos_fleet, so
from tests.chaos.parts.own_network import dropped, own_network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
VICTIM = "chaos-0"
APART = "127.0.0.2"
"""The replica's address for that worker's agent alone."""
Rules = Callable[[int], list[str]]


@pytest.fixture
def alone() -> Iterator[None]:
    with own_network():
        yield


def _reached(worker: str, url: str) -> str:
    return url.replace("127.0.0.1", APART) if worker == VICTIM else url


async def _withdrawn(replica: ReplicaPart) -> bool:
    told = (await replica.workers())[VICTIM]
    return bool(told["stale"])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("ways", "rules"),
    [
        ("of what the agent sends", lambda port: [f"-d {APART} --dport {port}"]),
        ("of what the replica sends", lambda port: [f"-s {APART} --sport {port}"]),
        ("both ways", lambda port: [f"-d {APART} --dport {port}", f"-s {APART} --sport {port}"]),
    ],
    ids=["to-the-replica", "to-the-agent", "both-ways"],
)
async def test_a_partition_between_agent_and_replica(tmp_path: Path, ways: str, rules: Rules) -> None:
    async with chaos_fleet(tmp_path, reached=_reached, internal_host="0.0.0.0") as fleet:
        (replica,), scenario = fleet.replicas, Scenario(fleet)
        port = urlsplit(replica.internal).port
        assert port is not None
        async with scenario.loaded():
            began = time.monotonic()
            with dropped(*rules(port)):
                await so(lambda: _withdrawn(replica))
                measured(
                    20, f"blocks not counted on any more, packets lost {ways}", time.monotonic() - began, at_most=10
                )
                assert (await replica.workers())[VICTIM]["ready"]
                served = await replica.metric("cachefleet_requests_total")
                await scenario.answered(100)
                assert await replica.metric("cachefleet_requests_total") > served
            began = time.monotonic()
            await so(lambda: _heard(replica))
            measured(20, f"blocks known again, packets lost {ways}", time.monotonic() - began, at_most=5)
        assert scenario.failed == 0, (dict(scenario.tally.failures), scenario.tally.examples)
        measured(20, "requests failed", scenario.failed, unit="", at_most=0)
        await scenario.hold()


async def _heard(replica: ReplicaPart) -> bool:
    told = (await replica.workers())[VICTIM]
    return bool(not told["stale"] and told["stream"] == "live")
