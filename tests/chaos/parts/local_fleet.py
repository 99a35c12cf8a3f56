"""A fleet of real processes: replicas of the control plane, workers of fake engines and real agents, addresses kept."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.parts import CONTROL_PLANE, POOL, Engine, Running, agent_environment, control_plane_environment, write_files
from bench.soak_fleet import MODEL, OPTIONS
from cachefleet_core.tenancy import FleetKey, fleet_index_key
from cachefleet_local.fleet.ports import take_ports
from tests.chaos.parts.processes import Part
from tests.controlplane.waiting import task

ADMIN: Final = {"authorization": "Bearer admin"}
WAIT_SECONDS: Final = 120.0
"""Ends a hang, and is no budget."""
LOOK_SECONDS: Final = 0.05
PROBE_SECONDS: Final = 1.0
PROBE_TIMEOUT_SECONDS: Final = 5.0
"""As the operator's pods have it."""
NUM_BLOCKS: Final = 16_384
"""So many that none is evicted, of which a stock engine may tell more than is so: the index is to be exact here."""
EVICTING_SHARE: Final = 0.9
Json = dict[str, Any]


async def so(condition: Callable[[], Awaitable[Any]]) -> None:
    """Wait until it is. TimeoutError."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not await condition():  # noqa: ASYNC110 - other processes
            await asyncio.sleep(LOOK_SECONDS)


@dataclass(slots=True)
class ReplicaPart:
    """One replica of the control plane."""

    part: Part
    gateway: str
    internal: str

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON; 0 where nobody answers."""
        timeout = aiohttp.ClientTimeout(5)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=ADMIN) as http,
                http.get(self.internal + path) as answer,
            ):
                return answer.status, await answer.json(content_type=None)
        return 0, None

    async def post(self, path: str, body: Json) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers and JSON of the admin API's answer."""
        async with (
            aiohttp.ClientSession(headers=ADMIN) as http,
            http.post(f"{self.internal}/admin/v1{path}", json=body) as answer,
        ):
            return answer.status, answer.headers, await answer.json(content_type=None)

    async def ready(self) -> bool:
        return (await self.get("/readyz"))[0] == 200

    async def workers(self) -> dict[str, Json]:
        """What it knows of each worker; {} where it does not answer."""
        status, told = await self.get("/admin/v1/workers?limit=500")
        return {one["name"]: one for one in told["items"]} if status == 200 else {}

    async def metric(self, name: str) -> float:
        """The sum over all labels of a series of ours."""
        async with aiohttp.ClientSession(headers=ADMIN) as http, http.get(f"{self.internal}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


@dataclass(slots=True)
class WorkerParts:
    """One worker: an engine and the agent beside it."""

    name: str
    engine: Part
    agent: Part
    url: str
    probe: str
    key: str
    deaths: list[float] = field(default_factory=list)
    unready: Counter[str] = field(default_factory=Counter)
    """Why it was not ready, and how often."""

    def kill(self) -> None:
        """SIGKILL to the engine."""
        self.deaths.append(time.monotonic())
        self.engine.kill()

    async def ready(self) -> bool:
        """Whether its agent says so, as it does to a kubelet."""
        timeout, why = aiohttp.ClientTimeout(PROBE_TIMEOUT_SECONDS), "its agent does not answer"
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(self.probe) as answer:
                if answer.status == 200:
                    return True
                why = await answer.text()
        self.unready[why] += 1
        return False

    def died_within(self, began: float, ended: float) -> bool:
        return any(began <= death <= ended for death in self.deaths)

    async def held(self) -> int | None:
        """Blocks that an engine at rest has cached, as it says itself; None where it works, or does not answer."""
        headers, timeout = {"authorization": f"Bearer {self.key}"}, aiohttp.ClientTimeout(5)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
                http.get(f"{self.url}/held_blocks") as answer,
            ):
                told = await answer.json()
                return int(told["held"]) if told["at_rest"] else None
        return None


@dataclass(slots=True)
class ChaosFleet:
    """``key`` is an API key of the tenant that loads it, ``other`` one of another tenant."""

    folder: Path
    replicas: list[ReplicaPart]
    workers: dict[str, WorkerParts]
    key: str = ""
    other: str = ""
    database_url: str = ""
    evicts: bool = False
    """Whether its engines are so small that they evict: the index then has a block less here and there."""
    others_listed: list[Json] = field(default_factory=list)
    """Workers that are listed beside its own."""

    async def probe(self) -> None:
        """List workers as ready or not by their agents' word, each second, as a kubelet and the API server do."""
        while True:
            await self.list_workers()
            await asyncio.sleep(PROBE_SECONDS)

    async def list_workers(self) -> None:
        """Write the endpoints file for how workers are now."""
        ready = await asyncio.gather(*(worker.ready() for worker in self.workers.values()))
        listed = [
            {"name": worker.name, "url": worker.url, "ready": is_ready}
            for worker, is_ready in zip(self.workers.values(), ready, strict=True)
        ]
        draft = self.folder / ".endpoints.json"
        draft.write_text(json.dumps({POOL: [*listed, *self.others_listed]}))
        draft.replace(self.folder / "endpoints.json")

    async def agreed(self) -> bool:
        """Whether each replica holds of each worker exactly as many blocks as its engine."""
        held = {name: await worker.held() for name, worker in self.workers.items()}
        if None in held.values():
            return False
        return all([await self._knows(replica, held) for replica in self.replicas])

    async def all_ready(self) -> bool:
        """Whether each replica knows each worker as ready."""
        told = [one for replica in self.replicas for one in (await replica.workers()).values()]
        return len(told) == len(self.replicas) * len(self.workers) and all(one["ready"] for one in told)

    async def _knows(self, replica: ReplicaPart, held: Mapping[str, int | None]) -> bool:
        told = await replica.workers()
        live = all(one["stream"] == "live" and not one["stale"] for one in told.values())
        known = {name: one["heldBlocks"] for name, one in told.items()}
        if self.evicts:
            return live and all(EVICTING_SHARE * count <= known[name] <= count for name, count in held.items() if count)
        return live and known == held

    async def tenants(self) -> None:
        """Make two tenants with a key each; replicas that share a store learn of them from it."""
        self.key, self.other = [await self.tenant(name) for name in ("acme", "umbrella")]
        for replica in self.replicas[1:]:
            await so(partial(_knows_tenants, replica))

    async def tenant(self, name: str) -> str:
        """Make a tenant; returns its API key."""
        assert (await self.replicas[0].post("/tenants", {"name": name}))[0] == 201
        return str((await self.replicas[0].post(f"/tenants/{name}/keys", {}))[2]["key"])

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


async def _knows_tenants(replica: ReplicaPart) -> bool:
    status, told = await replica.get("/admin/v1/tenants/umbrella/keys")
    return status == 200 and len(told["items"]) == 1


@asynccontextmanager
async def chaos_fleet(
    folder: Path,
    *,
    replicas: int = 1,
    workers: int = 2,
    reached: Callable[[str, str], str] = lambda _, url: url,
    engine: Mapping[str, object] = {},
    spec: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[ChaosFleet]:
    """All ready and with two tenants. ``reached`` gives the URL by which a worker's agent reaches a replica's internal
    port; ``engine`` are options of the fakes, ``spec`` lines of the pool's, ``settings`` the control plane's.
    """
    key = FleetKey.generate()
    fleet = ChaosFleet(
        folder, [], {}, database_url=str(settings.get("database_url", "")), evicts="num-blocks" in engine
    )
    engines = {f"chaos-{number}": _engine() for number in range(workers)}
    write_files(folder, key, {name: one for name, (one, _) in engines.items()}, spec)
    for number in range(replicas):
        fleet.replicas.append(_replica(folder, number, settings))
    for name, (address, ports) in engines.items():
        fleet.workers[name] = _worker(fleet, name, address, ports, key, reached, engine)
    try:
        for part in _parts(fleet):
            part.start()
        for replica in fleet.replicas:
            await so(replica.ready)
        async with task(fleet.probe()):
            await fleet.tenants()
            await so(fleet.agreed)
            await so(fleet.all_ready)
            yield fleet
    finally:
        for part in _parts(fleet):
            part.stop()


def _parts(fleet: ChaosFleet) -> list[Part]:
    agents = [worker.agent for worker in fleet.workers.values()]
    return [*(replica.part for replica in fleet.replicas), *(one.engine for one in fleet.workers.values()), *agents]


def _engine() -> tuple[Engine, dict[str, int]]:
    ports = take_ports({"port": 0, "events-port": 0, "replay-port": 0})
    address = Engine(
        url=f"http://127.0.0.1:{ports['port']}",
        events=f"tcp://127.0.0.1:{ports['events-port']}",
        replay=f"tcp://127.0.0.1:{ports['replay-port']}",
        model=MODEL,
        block_size=16,
        max_model_len=int(str(OPTIONS["max-model-len"])),
        resource="nvidia.com/gpu",
    )
    return address, ports


def _replica(folder: Path, number: int, settings: Mapping[str, object]) -> ReplicaPart:
    ports = take_ports({"gateway": 0, "internal": int(str(settings.get("internal_port", 0)))})
    own = {f"CACHEFLEET_{name.upper()}": str(value) for name, value in settings.items()}
    told = control_plane_environment(folder, ports) | {"CACHEFLEET_DATA_DIR": str(folder / f"data-{number}")} | own
    part = Part(f"replica-{number}", CONTROL_PLANE, told, folder / f"replica-{number}.log")
    return ReplicaPart(part, f"http://127.0.0.1:{ports['gateway']}", f"http://127.0.0.1:{ports['internal']}")


def _worker(  # noqa: PLR0917 - of one caller
    fleet: ChaosFleet,
    name: str,
    address: Engine,
    ports: Mapping[str, int],
    key: FleetKey,
    reached: Callable[[str, str], str],
    changes: Mapping[str, object],
) -> WorkerParts:
    folder, first = fleet.folder, fleet.replicas[0]
    index_key = base64.b64encode(fleet_index_key(key.index_key, "default", MODEL)).decode()
    options = {
        **OPTIONS,
        **ports,
        "num-blocks": NUM_BLOCKS,
        "api-key": key.worker_key(POOL),
        "index-key": index_key,
        **changes,
    }
    flags = ["--plugin", *(f"--{option}={value}" for option, value in options.items())]
    engine = Part(f"{name}-engine", ["-m", "tests.fakes.engine", *flags], {}, folder / f"{name}-engine.log")
    planes = ",".join(reached(name, replica.internal).replace("http", "ws", 1) for replica in fleet.replicas)
    told = agent_environment(folder, Running(first.gateway, first.internal, 0), name, address)
    port = take_ports({"agent": 0})["agent"]
    own = told | {"CACHEFLEET_CONTROL_PLANES": planes, "CACHEFLEET_HTTP_PORT": str(port)}
    agent = Part(f"{name}-agent", ["-m", "cachefleet_worker.agent"], own, folder / f"{name}-agent.log")
    return WorkerParts(name, engine, agent, address.url, f"http://127.0.0.1:{port}/readyz", key.worker_key(POOL))
