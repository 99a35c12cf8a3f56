"""``POST /simulate``: what it takes, how figures are shown, and what becomes of one whose client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from cachefleet_controlplane.admin.admin_app import PATH, AdminParts, admin_app
from cachefleet_controlplane.admin.answers import client_presence
from cachefleet_controlplane.simulation.fleet_model import Changes
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.simulation_job import Figures
from cachefleet_controlplane.simulation.simulator import Played, Simulated, WantedSimulation
from cachefleet_controlplane.simulation.workload import TraceLine
from cachefleet_controlplane.wire.errors import ApiError
from tests.controlplane.admin.conftest import TOKEN

LINE = {"timestamp": 0, "input_length": 64, "output_length": 4, "hash_ids": [1, 2]}


def figures(recomputed: int) -> Figures:
    return Figures(
        requests=10,
        prompt_tokens=1000,
        recomputed_tokens=recomputed,
        queue_p50_seconds=0.25,
        queue_p99_seconds=1.5,
        ttft_p50_seconds=0.5,
        ttft_p95_seconds=None,
    )


def played(recomputed: int, budget: int, policy: str = "cacheAware") -> Played:
    simulated = msgspec.structs.replace(figures(recomputed), refused=0, preemptions=0)
    return Played(policy=policy, budget_mib=budget, setup=Setup(), figures=simulated)


TOLD = Simulated(
    pool="ns/p",
    happened=figures(600),
    warm_up=3,
    today=played(590, 1024),
    changed=played(400, 8192, "leastLoaded"),
    seconds=0.5,
)


class Simulating:
    """Remembers what was asked; tells TOLD, fails, or takes forever."""

    def __init__(self) -> None:
        self.asked: list[WantedSimulation] = []
        self.told = TOLD
        self.error: ApiError | None = None
        self.forever = False
        self.cancelled = asyncio.Event()

    async def __call__(self, wanted: WantedSimulation) -> Simulated:
        self.asked.append(wanted)
        if self.error is not None:
            raise self.error
        try:
            await asyncio.sleep(3600 if self.forever else 0)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return replace(self.told, happened=None) if wanted.trace else self.told


@pytest.fixture
def simulating() -> Simulating:
    return Simulating()


@pytest.fixture
def served(  # noqa: PLR0917 - fixtures
    fleet: Any, decisions: Any, service: Any, usage: Any, oracle: Any, doorkeeper: Any, simulating: Simulating
) -> FastAPI:
    given: dict[str, Any] = {"service": service, "usage": usage, "explain": oracle}
    return admin_app(AdminParts(fleet=fleet, decisions=decisions, simulate=simulating, **given), authorize=doorkeeper)


@pytest.fixture
async def http(served: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=Starlette(routes=[Mount(PATH, served)]), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://internal{PATH}") as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        yield client


async def test_figures_of_what_happened_and_what_would(http: httpx.AsyncClient, simulating: Simulating) -> None:
    changes = {"budgetMib": 8192, "workers": 6, "policy": "leastLoaded"}
    answer = await http.post("simulate", json={"source": {"recorded": 10}, "changes": changes, "pool": "ns/p"})
    assert answer.status_code == 200
    told = answer.json()
    assert [told[side]["hitRatio"] for side in ("happened", "today", "changed")] == pytest.approx([0.4, 0.41, 0.6])
    assert told["happened"]["queueP99Seconds"] == 1.5
    assert (told["changed"]["budgetMib"], told["changed"]["policy"], told["warmUp"]) == (8192, "leastLoaded", 3)
    wanted = Changes(policy="leastLoaded", budget_mib=8192, workers=6)
    assert simulating.asked == [WantedSimulation(pool="ns/p", recorded=10, changes=wanted)]


async def test_a_trace_is_taken_as_it_is_published(http: httpx.AsyncClient, simulating: Simulating) -> None:
    answer = await http.post("simulate", json={"source": {"trace": [LINE], "blockTokens": 32}})
    assert answer.status_code == 200
    line = TraceLine(timestamp=0, input_length=64, output_length=4, hash_ids=(1, 2))
    assert simulating.asked == [WantedSimulation(trace=(line,), trace_block=32)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body.source"),
        ({"source": {}}, "body.source"),
        ({"source": {"recorded": 1, "trace": [LINE]}}, "body.source"),
        ({"source": {"recorded": 0}}, "body.source.recorded"),
        ({"source": {"trace": []}}, "body.source.trace"),
        ({"source": {"trace": [{**LINE, "input_length": 0}]}}, "body.source.trace.0.input_length"),
        ({"source": {"trace": [{**LINE, "hash_ids": [1, 2**64]}]}}, "body.source.trace.0.hash_ids.1"),
        ({"source": {"recorded": 1}, "changes": {"workers": 0}}, "body.changes.workers"),
        ({"source": {"recorded": 1}, "changes": {"budgetMib": -1}}, "body.changes.budgetMib"),
        ({"source": {"recorded": 1}, "changes": {"policy": "best"}}, "body.changes.policy"),
        ({"source": {"recorded": 1}, "changes": {"budget": 1}}, "body.changes.budget"),
    ],
)
async def test_what_is_wrong_is_named(
    http: httpx.AsyncClient, simulating: Simulating, body: dict[str, Any], field: str
) -> None:
    answer = await http.post("simulate", json=body)
    assert answer.status_code == 422
    assert field in [error["field"] for error in answer.json()["errors"]]
    assert not simulating.asked


async def test_a_refusal_is_a_problem(http: httpx.AsyncClient, simulating: Simulating) -> None:
    simulating.error = ApiError(409, "another simulation is running")
    answer = await http.post("simulate", json={"source": {"recorded": 10}})
    assert (answer.status_code, answer.json()["detail"]) == (409, "another simulation is running")


async def test_it_ends_when_its_client_leaves(
    served: FastAPI, simulating: Simulating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_presence, "LOOK_SECONDS", 0.01)
    simulating.forever = True
    messages = [{"type": "http.request", "body": b'{"source": {"recorded": 5}}'}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if len(messages) > 1 else messages[0]

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/simulate", "query_string": b"", "headers": headers}
    async with asyncio.timeout(20):
        await served({**scope, "root_path": "", "http_version": "1.1"}, receive, send)
        await simulating.cancelled.wait()
