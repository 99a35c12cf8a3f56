"""Two replicas of the control plane behind one gateway port: real processes, but for the engines, which are fake."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from cachefleet_core.tenancy import FleetKey
from cachefleet_local.fleet import local_fleet
from cachefleet_local.fleet.local_fleet import LocalFleet, Options, Prepared, prepared
from cachefleet_local.fleet.machine import Machine
from cachefleet_local.fleet.ports import take_ports
from cachefleet_local.supervise.process_spec import Kind, ProcessSpec
from tests.controlplane.gateway.harness import chat
from tests.controlplane.replicas import Traffic
from tests.local.pools import changed

ROOT = Path(__file__).parents[3]
SECONDS = 60.0
"""A limit of hangs, no promise."""


def fake_engine(spec: ProcessSpec, fleet: Prepared, events: dict[str, int]) -> ProcessSpec:
    """The fake in place of vLLM."""
    key = FleetKey.parse(fleet.folder.index_key_file("default/demo").read_text()).format()
    told = {
        "port": spec.ready_url.split(":")[2].split("/")[0],
        "worker-key": spec.environment["VLLM_API_KEY"],
        "api-key": spec.environment["VLLM_API_KEY"],
        "index-key": base64.b64encode(base64.urlsafe_b64decode(key + "=" * (-len(key) % 4))).decode(),
        "inter-token-seconds": "0.01",
        "block-size": "32",
        "events-port": str(events[f"{spec.name}.events"]),
        "replay-port": str(events[f"{spec.name}.replay"]),
    }
    argv = (sys.executable, "-m", "tests.fakes.engine", "--plugin", *(f"--{name}={told[name]}" for name in told))
    return replace(spec, argv=argv, environment={"PYTHONPATH": str(ROOT)})


@contextmanager
def two_replicas(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prepared]:
    machine = Machine(nvidia_devices=0, vllm="0.32.0", vllm_for_cpu=True, plugin="1")
    monkeypatch.setattr(local_fleet, "this_machine", lambda _: machine)
    monkeypatch.setattr(local_fleet, "model_path", lambda _: str(folder))
    options = Options(folder / "data", gateway_port=0, internal_port=0, replicas=2)
    with prepared(changed("cpu-two-workers", "name: tiny", "name: fake"), options) as fleet:
        engines = [spec.name for spec in fleet.plan.processes if spec.kind is Kind.ENGINE]
        events = take_ports({f"{name}.{part}": 0 for name in engines for part in ("events", "replay")})
        processes = []
        for spec in fleet.plan.processes:
            if spec.kind is Kind.ENGINE:
                processes.append(fake_engine(spec, fleet, events))
            elif spec.kind is Kind.AGENT:
                engine = spec.name.replace("agent", "engine")
                own = {
                    f"CACHEFLEET_{part.upper()}_ENDPOINT": f"tcp://127.0.0.1:{events[f'{engine}.{part}']}"
                    for part in ("events", "replay")
                }
                processes.append(replace(spec, environment=dict(spec.environment) | own))
            else:
                processes.append(spec)
        yield replace(fleet, plan=replace(fleet.plan, processes=tuple(processes)))


class Replicas:
    """What the replicas of a running fleet say."""

    def __init__(self, fleet: Prepared, http: aiohttp.ClientSession) -> None:
        self._fleet = fleet
        self._http = http
        token = fleet.folder.admin_token_file.read_text()
        self._headers = {"Authorization": f"Bearer {token}"}

    async def asked(self, replica: str, path: str, **more: Any) -> Any:
        url = f"{self._fleet.plan.replicas[replica]}/admin/v1/{path}"
        async with self._http.request(more.pop("method", "GET"), url, headers=self._headers, **more) as answer:
            return await answer.json()

    async def readiness(self, replica: str) -> tuple[int, Any]:
        async with self._http.get(f"{self._fleet.plan.replicas[replica]}/readyz") as answer:
            return answer.status, await answer.json()

    async def taken(self, replica: str) -> int:
        """Requests that it has had."""
        async with self._http.get(f"{self._fleet.plan.replicas[replica]}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("cachefleet_requests_total{"))


def process_of(replica: str, fleet: Prepared) -> psutil.Process:
    """The process of a replica, not its guard."""
    port = fleet.plan.replicas[replica].rpartition(":")[2]
    (found,) = [
        one
        for one in psutil.Process(os.getpid()).children(recursive=True)
        if "cachefleet_controlplane" in one.cmdline()
        and not any(word.endswith("guard.py") for word in one.cmdline())
        and one.environ()["CACHEFLEET_INTERNAL_PORT"] == port
    ]
    return found


@asynccontextmanager
async def running(fleet: Prepared) -> AsyncIterator[Replicas]:
    async with LocalFleet(fleet), aiohttp.ClientSession() as http:
        yield Replicas(fleet, http)


async def _alone(gateway: str, text: str) -> str:
    """A request on a connection of its own; what was known of its prompt."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{gateway}/v1/chat/completions", json=chat(text, max_tokens=1)) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return answer.headers["x-cachefleet-knowledge"]


async def test_a_killed_replica_costs_its_connections_and_comes_back_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = 3
    with two_replicas(tmp_path, monkeypatch) as fleet:
        async with running(fleet) as replicas:
            gateway, second = fleet.plan.gateway_url, "controlplane-2"
            async with asyncio.timeout(SECONDS), Traffic(gateway).flowing(clients) as traffic:
                while min([await replicas.taken(name) for name in fleet.plan.replicas]) < 10:
                    await _alone(gateway, "both take connections")
                assert traffic.failures == []
                process = process_of(second, fleet)
                process.kill()
                before = traffic.answered
                while traffic.answered < before + 30:  # noqa: ASYNC110 - in another task
                    await asyncio.sleep(0.02)
                while (await replicas.readiness(second))[0] != 200 or process_of(second, fleet) == process:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert (await replicas.readiness(second))[1]["agents"]["awaited"] == []
                while not await replicas.taken(second):
                    assert await _alone(gateway, "it takes connections again") == "exact"
            # Those of its own connections; whoever connected while it was away was answered by the other.
            assert len(traffic.failures) <= clients
            assert all(
                word.startswith(("ServerDisconnected", "ClientPayload", "ClientOS", "ConnectionReset"))
                for word in traffic.failures
            )


async def test_tenants_usage_and_decisions_are_those_of_all_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_replicas(tmp_path, monkeypatch) as fleet:
        async with running(fleet) as replicas, asyncio.timeout(SECONDS):
            first, second = fleet.plan.replicas
            asked = 0
            while min([await replicas.taken(name) for name in (first, second)]) < 3:
                await _alone(fleet.plan.gateway_url, "hello")
                asked += 1
            while len((await replicas.asked(first, "decisions?limit=500"))["items"]) < asked:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert (await replicas.asked(second, "decisions?limit=500"))["items"]
            made = await replicas.asked(second, "tenants", method="POST", json={"name": "a"})
            assert made["name"] == "a", "each would have a store of its own"
            while "a" not in [one["name"] for one in (await replicas.asked(first, "tenants"))["items"]]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
