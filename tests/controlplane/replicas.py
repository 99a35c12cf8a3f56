"""Replicas of the control plane as processes, behind a fake of what a Service does with connections."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from cachefleet_local.fleet.ports import take_ports
from tests.controlplane.gateway.harness import FLEET_KEY, POOL, Worker, chat
from tests.controlplane.wiring.test_control_plane import POOL_FILE


class Listening(Protocol):
    """A replica, as far as a Service knows one."""

    gateway: str

    async def ready(self) -> bool:
        """Whether it is to get new connections."""


@dataclass
class Replica:
    """One process; ``end`` asks it to go, as a kubelet does."""

    gateway: str
    internal: str
    process: asyncio.subprocess.Process

    async def ready(self) -> bool:
        with suppress(aiohttp.ClientError, TimeoutError):
            timeout = aiohttp.ClientTimeout(5)
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{self.internal}/readyz") as answer:
                return answer.status == 200
        return False

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)


def write_files(folder: Path, workers: Mapping[str, Worker]) -> dict[str, str]:
    """What replicas read, and the variables that name it."""
    listed = {POOL: [{"name": name, "url": one.url, "ready": True} for name, one in workers.items()]}
    files = {
        "POOL_FILE": ("pool.yaml", POOL_FILE),
        "ENDPOINTS_FILE": ("endpoints.json", json.dumps(listed)),
        "FLEET_KEY_FILE": ("fleet.key", FLEET_KEY.format()),
        "REPORTS_TOKEN_FILE": ("reports.token", "for-agents"),
        "ADMIN_TOKEN_FILE": ("admin.token", "for-people"),
    }
    for name, content in files.values():
        (folder / name).write_text(content)
    return {variable: str(folder / name) for variable, (name, _) in files.items()}


@asynccontextmanager
async def replica(
    folder: Path, name: str, workers: Mapping[str, Worker], *, ports: Any = None, **settings: Any
) -> AsyncIterator[Replica]:
    """One that is ready; killed at the end where it still runs. ``ports``: its gateway's and its internal one."""
    ports = ports or take_ports({"gateway": 0, "internal": 0})
    own = write_files(folder, workers) | {
        "GATEWAY_PORT": str(ports["gateway"]),
        "INTERNAL_PORT": str(ports["internal"]),
        "DATA_DIR": str(folder / name),
        "STARTUP_SECONDS": "0",
    }
    told = own | {key.upper(): str(value) for key, value in settings.items()}
    async with _process({f"CACHEFLEET_{key}": value for key, value in told.items()}) as process:
        made = Replica(f"http://127.0.0.1:{ports['gateway']}", f"http://127.0.0.1:{ports['internal']}", process)
        async with asyncio.timeout(90):
            while not await made.ready():
                assert process.returncode is None
                await asyncio.sleep(0.05)
        yield made


@asynccontextmanager
async def _process(told: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Killed at the end where it still runs; what temporary files it leaves then go, too."""
    with tempfile.TemporaryDirectory(prefix="cachefleet-") as temporary:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cachefleet_controlplane"), env=os.environ | {"TMPDIR": temporary} | told
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


class FakeService:
    """A fake of kube-proxy: new connections go in turn to the replicas that were ready ``late`` seconds ago.

    Like it, it never touches a connection that is open, and it does not know what is said on one.
    """

    def __init__(self, replicas: Sequence[Listening], *, late: float) -> None:
        self._replicas = replicas
        self._late = late
        self._chosen: list[Listening] = list(replicas)
        self._left: set[str] = set()
        self._turn = count()
        self._relays: set[asyncio.Task[None]] = set()
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeService]:
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        watching = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            watching.cancel()
            server.close()
            for task in list(self._relays):
                task.cancel()
            await asyncio.gather(watching, *self._relays, return_exceptions=True)

    def told_of_start(self, replica: Listening) -> None:
        """A replica that was told to end is there again, at its address."""
        self._left.discard(replica.gateway)

    def told_of_end(self, replica: Listening) -> None:
        """As by the deletion of its pod: at the time of the signal, whatever the replica says of itself."""
        asyncio.get_running_loop().call_later(self._late, self._leave, replica)

    def _leave(self, replica: Listening) -> None:
        self._left.add(replica.gateway)
        self._take(self._chosen)

    async def _watch(self) -> None:
        while True:
            ready = [one for one in self._replicas if await one.ready()]
            asyncio.get_running_loop().call_later(self._late, self._take, ready)
            await asyncio.sleep(0.1)  # how often a Service looks at readiness here

    def _take(self, ready: list[Listening]) -> None:
        self._chosen = [one for one in ready if one.gateway not in self._left]

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        async with _closing(writer):
            if not self._chosen:
                return  # a connection that is refused
            chosen = self._chosen[next(self._turn) % len(self._chosen)]
            with suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", int(chosen.gateway.rsplit(":", 1)[1]))
                async with _closing(there[1]):
                    await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))


@asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@dataclass
class Traffic:
    """Clients that ask all the time on kept connections, and never ask twice; what went wrong, in words."""

    url: str
    streams: bool = True
    """Every other answer is a stream."""
    answered: int = 0
    failures: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def flowing(self, clients: int = 6) -> AsyncIterator[Traffic]:
        stop = asyncio.Event()
        async with aiohttp.ClientSession() as http:
            asking = [asyncio.create_task(self._ask(http, number, stop)) for number in range(clients)]
            try:
                yield self
            finally:
                stop.set()
                await asyncio.gather(*asking)

    async def _ask(self, http: aiohttp.ClientSession, client: int, stop: asyncio.Event) -> None:
        for number in count():
            if stop.is_set():
                return
            streamed = self.streams and bool((client + number) % 2)
            try:
                await self._one(http, f"{client} asks for the {number}th time", stream=streamed)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self.failures.append(repr(error))
            await asyncio.sleep(0.01)

    async def _one(self, http: aiohttp.ClientSession, text: str, *, stream: bool) -> None:
        body = chat(text, stream=stream, max_tokens=8, ignore_eos=True)
        async with http.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            told = await answer.read()
        whole = told.endswith(b"data: [DONE]\n\n") if stream else b'"finish_reason":"length"' in told
        if answer.status == 200 and whole:
            self.answered += 1
        else:
            self.failures.append(f"{answer.status} {told[-200:]!r}")
