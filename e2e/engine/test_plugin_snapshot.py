"""Snapshots, held-back removals and heartbeats of a running engine, as an agent beside it uses them.

The engine replays its last four batches only: whatever is whole here, is so by snapshot.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import pytest
import zmq
import zmq.asyncio

from cachefleet_core.report_frames import Cleared, Delta, Phase
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.endpoints import Endpoints
from cachefleet_worker.agent.engines.vllm.events.epoch import Limits
from cachefleet_worker.agent.engines.vllm.events.follower import Follower
from cachefleet_worker.agent.engines.vllm.events.snapshot_client import Head, SnapshotClient, SnapshotError
from cachefleet_worker.agent.engines.vllm.events.source import Source, SourceLimits
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from cachefleet_worker.plugin.settings import PluginSettings
from e2e.engine.plugin_client import fleet
from e2e.engine.vllm import VllmOptions, VllmServer
from tests.controlplane.waiting import task
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.model import CONTRACT, INDEX_KEY
from tests.worker.conftest import make_settings  # noqa: F401 - a fixture

BLOCK: Final = 32
OPTIONS: Final = VllmOptions(
    plugin=True,
    num_blocks=256,
    buffer_steps=4,
)
ROUNDS: Final = 12
AT_ONCE: Final = 6

pytestmark = pytest.mark.parametrize("vllm_server", [OPTIONS], indirect=True)


def prompt(seed: int, blocks: int) -> list[int]:
    """Token ids; equal seeds share their beginning."""
    chance = random.Random(seed)
    return [chance.randrange(10, 900) for _ in range(blocks * BLOCK)]


class Load:
    """Requests to an engine."""

    def __init__(self, server: VllmServer, http: aiohttp.ClientSession) -> None:
        self._server, self._http = server, http

    async def complete(self, tokens: list[int], count: int = 1) -> None:
        body = {"model": "tiny", "prompt": tokens, "max_tokens": count, "temperature": 0, "ignore_eos": True}
        async with self._http.post(
            self._server.url + "/v1/completions", json=body, headers=self._server.headers
        ) as got:
            assert got.status == 200, await got.text()
            await got.read()

    async def several(self, seed: int) -> None:
        """Prompts that share beginnings, some twice at once, more than the pool holds in all."""
        chance = random.Random(seed)
        picks = [chance.randrange(24) for _ in range(AT_ONCE - 1)]
        sizes = [chance.randrange(2, 28) for _ in picks]
        twice = list(zip([*picks, picks[0]], [*sizes, sizes[0]], strict=True))
        await asyncio.gather(*(self.complete(prompt(pick, size), chance.randrange(1, 40)) for pick, size in twice))

    async def reset(self) -> None:
        async with asyncio.timeout(60):
            while True:
                url = self._server.url + "/reset_prefix_cache"
                async with self._http.post(url, headers=self._server.headers) as answer:
                    if (await answer.json())["success"]:
                        return
                await asyncio.sleep(0.02)


@pytest.fixture
async def load(vllm_server: VllmServer) -> AsyncIterator[Load]:
    async with aiohttp.ClientSession() as http:
        load = Load(vllm_server, http)
        await load.reset()
        yield load


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as plane:
        yield plane


@pytest.fixture
def settings(vllm_server: VllmServer, plane: ControlPlane, make_settings: Any, tmp_path: Path) -> AgentSettings:  # noqa: F811
    (tmp_path / "worker.key").write_text(vllm_server.options.api_key)
    made: AgentSettings = make_settings(engine_url=vllm_server.url, control_planes=plane.url, poll_seconds=0.2)
    return made


@pytest.fixture
async def agent(settings: AgentSettings, plane: ControlPlane) -> AsyncIterator[Agent]:
    async with running(settings) as agent:
        await plane.until(lambda: plane.state and plane.state.phase is Phase.READY, 60)
        yield agent


async def audit(server: VllmServer) -> dict[str, Any]:
    """The engine's own comparison of its table with what it published."""
    found: dict[str, Any] = (await asyncio.to_thread(fleet, server, "/audit"))["ranks"]["0"]
    assert (found["ledger_missing"], found["ledger_extra"]) == (0, 0)
    return found


async def snapshot(server: VllmServer) -> tuple[Head, Residents]:
    """As soon as nobody else is given one."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await snapshot_now(server)
            except SnapshotError as error:
                if str(error) != "HTTP 429":
                    raise
            await asyncio.sleep(0.05)


async def snapshot_now(server: VllmServer) -> tuple[Head, Residents]:
    draft = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK)
    return await SnapshotClient(server.url, key=server.options.api_key).fetch(0, draft), draft


async def test_an_agent_that_comes_late_has_everything(
    vllm_server: VllmServer, load: Load, settings: AgentSettings, plane: ControlPlane
) -> None:
    for number in range(10):
        await load.complete(prompt(number, 8))
    cached = (await audit(vllm_server))["blocks_cached"]
    assert cached == 80
    async with running(settings):
        await plane.until(lambda: len(plane.receiver.keys) == cached, 60)
        assert plane.hello is not None
        assert plane.hello.epoch == fleet(vllm_server, "/capabilities")["ranks"]["0"]["boot"]
        modes = {capability.feature: capability.mode for capability in plane.hello.capabilities}
        assert (modes["snapshot"], modes["heartbeat"]) == ("thread", "mark")


async def test_under_load_agent_snapshot_and_table_are_equal(
    vllm_server: VllmServer, load: Load, agent: Agent, plane: ControlPlane
) -> None:
    """Block by block; the pool is several times too small, and prompts are computed twice at once."""
    for number in range(ROUNDS):
        busy = asyncio.create_task(load.several(number))
        head, draft = await snapshot(vllm_server)
        assert draft.agrees(head.totals)
        await busy
        await audit(vllm_server)
    held_back = fleet(vllm_server, "/stats")["ranks"]["0"]["removals_held_back"]
    assert held_back > 0
    cached = (await audit(vllm_server))["blocks_cached"]
    head, draft = await snapshot(vllm_server)
    residents = agent.feed.streams[0].residents
    await plane.until(lambda: set(residents._names.live) == set(draft._names.live), 60)
    await plane.until(lambda: len(plane.receiver.keys) == cached, 60)
    assert draft.held == cached
    assert residents.agrees(head.totals)


@pytest.mark.usefixtures("agent")
async def test_a_reset_of_an_idle_engine_is_told_by_itself(load: Load, plane: ControlPlane) -> None:
    """Not found out by the next heartbeat: then the agent would take a snapshot and remove block by block."""
    await load.complete(prompt(1, 8))
    await plane.until(lambda: len(plane.receiver.keys) == 8, 60)
    before = len(plane.frames)
    await load.reset()
    await plane.until(lambda: not plane.receiver.keys, 60)
    told = [frame.operations for frame in plane.frames[before:] if isinstance(frame, Delta)]
    assert told == [(Cleared(),)]


async def test_an_agent_that_is_killed_comes_back_whole_in_the_same_epoch(
    vllm_server: VllmServer, load: Load, settings: AgentSettings, plane: ControlPlane
) -> None:
    for number in range(5):
        await load.complete(prompt(number, 8))
    for _ in range(2):
        met = len(plane.epochs)
        async with agent_process(settings) as process:
            await plane.until(partial(_is_whole, plane, met=met, blocks=40), 60)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        await plane.until(lambda: not plane._sockets, 60)
    assert len(set(plane.epochs)) == 1


def _is_whole(plane: ControlPlane, *, met: int, blocks: int) -> bool:
    """Another agent than those that had been met has told of so many blocks."""
    return len(plane.epochs) > met and len(plane.receiver.keys) == blocks


@asynccontextmanager
async def agent_process(settings: AgentSettings) -> AsyncIterator[asyncio.subprocess.Process]:
    names = ("worker", "pool", "index_key_file", "worker_key_file", "engine_url", "http_host")
    environment = {f"CACHEFLEET_{name.upper()}": str(getattr(settings, name)) for name in names}
    environment |= {"CACHEFLEET_CONTROL_PLANES": settings.control_planes[0], "CACHEFLEET_HTTP_PORT": "0"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cachefleet_worker.agent", env=os.environ | environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Lossy:
    """Between engine and agent, on the event socket alone: what passes while ``drop`` is set is lost."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.drop = False

    async def __aenter__(self) -> Self:
        context = zmq.asyncio.Context.instance()
        self._sub, self._pub = context.socket(zmq.SUB), context.socket(zmq.PUB)
        for each in (self._sub, self._pub):
            each.linger = 0
        self._sub.subscribe(b"")
        self._sub.connect(self._upstream)
        self.endpoint = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self._task = asyncio.create_task(self._pass_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._sub.close()
        self._pub.close()

    async def _pass_on(self) -> None:
        while True:
            frames = await self._sub.recv_multipart()
            if not self.drop:
                await self._pub.send_multipart(frames)


@asynccontextmanager
async def following(server: VllmServer, endpoint: str) -> AsyncIterator[tuple[Residents, Follower]]:
    """One rank followed without a replay socket."""
    residents = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK)
    follower = Follower(replay=False, snapshots=True, limits=Limits())
    source = Source(
        0,
        Endpoints(endpoint, ""),
        follower,
        residents,
        AgentMetrics(),
        limits=SourceLimits(),
        changed=lambda: None,
        restarted=pytest.fail,
        snapshots=SnapshotClient(server.url, key=server.options.api_key),
    )
    async with task(source.run()):
        yield residents, follower


async def test_a_heartbeat_reveals_a_lost_tail(vllm_server: VllmServer, load: Load, plane: ControlPlane) -> None:
    async with Lossy(vllm_server.events_endpoint) as lossy, following(vllm_server, lossy.endpoint) as (held, follower):
        await plane.until(lambda: follower.whole, 60)
        await load.complete(prompt(1, 8))
        await plane.until(lambda: held.held == 8, 60)
        lossy.drop = True
        await load.complete(prompt(2, 8))
        await asyncio.sleep(2 * PluginSettings().heartbeat_seconds)
        assert held.held == 8
        lossy.drop = False
        await plane.until(lambda: held.held == 16, 60)
        assert follower.whole


async def test_a_stream_with_losses_under_load_is_whole_in_the_end(
    vllm_server: VllmServer, load: Load, plane: ControlPlane
) -> None:
    chance = random.Random(3)
    async with Lossy(vllm_server.events_endpoint) as lossy, following(vllm_server, lossy.endpoint) as (held, follower):
        for number in range(ROUNDS):
            lossy.drop = chance.random() < 0.4
            await load.several(100 + number)
        lossy.drop = False
        head, draft = await snapshot(vllm_server)
        await plane.until(lambda: follower.whole and held.agrees(head.totals), 60)
        assert set(held._names.live) == set(draft._names.live)
    await audit(vllm_server)


async def test_snapshots_are_given_one_at_a_time_and_to_who_has_the_key(vllm_server: VllmServer, load: Load) -> None:
    for number in range(8):
        await load.complete(prompt(number, 20))
    found = await asyncio.gather(*(snapshot_now(vllm_server) for _ in range(6)), return_exceptions=True)
    refused = [each for each in found if isinstance(each, BaseException)]
    assert len(refused) < 6
    assert all(str(each) == "HTTP 429" for each in refused)
    async with aiohttp.ClientSession() as http:
        for path, headers, status in (
            ("?rank=7", vllm_server.headers, 503),
            ("?rank=x", vllm_server.headers, 400),
            ("", vllm_server.headers | {"X-Cachefleet-Token": "wrong"}, 403),
        ):
            async with http.get(f"{vllm_server.url}/v1/fleet/snapshot{path}", headers=headers) as answer:
                assert answer.status == status
