"""The agent and the control plane's own report server, over a real socket: the index is what the engine holds."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import aiohttp
import msgspec
import pytest
import uvicorn

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.internal_auth.authorizer import Authorization, Reporter
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.report_server.server import ReportsServer
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.engine.engine_arguments import engine_policy
from cachefleet_core.pool.spec import parse_pools
from cachefleet_core.report_frames import Hello, Phase
from cachefleet_core.tenancy import TenantId, fleet_index_key, tenant_salt
from cachefleet_local.fleet.ports import take_ports
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from tests.fakes.engine import FakeEngine
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.model import INDEX_KEY
from tests.worker.agent.test_agent import prompt

pytestmark = pytest.mark.usefixtures("hurried")

POOL = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: demo, namespace: default, uid: u-1}
spec:
  model: {name: fake, source: fake, weightsMiB: 1}
  engine: {blockSize: 32, maxModelLen: 512}
  device: {resource: "", memoryMiB: 4096}
"""


WARM = """
  prefixCache:
    warmPrefixes:
    - {name: support, tenants: [acme, umbrella], messages: [{role: system, content: "You are a support agent."}]}
"""
SALT_KEY = b"s" * 32
FLEET_INDEX_KEY = fleet_index_key(INDEX_KEY, "default", "fake")
"""What the workers of the fleet hold."""


class OneAgent:
    """An authorizer of one token, good for one worker."""

    async def agent(self, token: str) -> Authorization:
        return Authorization.ALLOWED if token == "token" else Authorization.UNAUTHENTICATED

    async def reports(self, token: str, hello: Hello) -> Reporter | None:
        return Reporter() if token == "token" and hello.worker == "demo-0" else None


@asynccontextmanager
async def control_plane(port: int, declared: str = POOL) -> AsyncIterator[Fleet]:
    fleet = Fleet(BlockIndex(), index_key=INDEX_KEY, salt_key=SALT_KEY)
    [pool] = parse_pools(declared)
    fleet.update_pools([PoolView(pool, (WorkerEndpoint("demo-0", "http://127.0.0.1:1", ready=True),))])

    app = ReportsServer(fleet, OneAgent(), Mock())
    server = uvicorn.Server(uvicorn.Config(app, port=port, ws="websockets-sansio", lifespan="off", log_level="warning"))
    task = asyncio.create_task(server._serve())  # serve() would take over the signals
    try:
        yield fleet
    finally:
        server.should_exit = server.force_exit = True
        await task


def truth(engine: FakeEngine, agent: Agent) -> set[int]:
    contract = agent.feed.streams[0].hello.contract
    shape = contract.block_size, contract.lookahead
    fingerprint = contract.fingerprint()
    return set(engine.held_keys(lambda salt: BlockKeyer(FLEET_INDEX_KEY, Namespace(fingerprint, salt), *shape)))


async def agrees(fleet: Fleet, engine: FakeEngine, agent: Agent) -> None:
    """Wait until the index holds of this worker exactly what the engine does."""
    index = fleet._index

    def same() -> bool:
        stats = index.stats().held
        keys = truth(engine, agent)
        residents = agent.feed.streams[0].residents
        return sum(stats.values()) == len(keys) == residents.held and all(
            index.digest(worker) == residents.digest for worker in stats
        )

    await ControlPlane().until(same)


async def test_the_index_follows_the_engine_through_restarts_of_each_part(
    make_settings: Callable[..., AgentSettings], tmp_path: Any
) -> None:
    port = take_ports({"internal": 0})["internal"]
    (tmp_path / "token").write_text("token")
    (tmp_path / "index.key").write_text(base64.urlsafe_b64encode(FLEET_INDEX_KEY).decode())
    async with FakeEngine(api_key="key", num_blocks=40, block_size=32) as engine, aiohttp.ClientSession() as http:

        async def ask(seed: int, salt: str = "") -> None:
            body = {"model": "fake", "prompt": prompt(seed, 150), "max_tokens": 1} | (
                {"cache_salt": salt} if salt else {}
            )
            async with http.post(
                engine.url + "/v1/completions", json=body, headers={"Authorization": "Bearer key"}
            ) as answer:
                assert answer.status == 200

        settings = make_settings(
            engine_url=engine.url,
            control_planes=f"ws://127.0.0.1:{port}",
            token_file=tmp_path / "token",
            weights="fake",
        )
        async with running(settings) as agent:
            async with control_plane(port) as fleet:
                for seed in range(12):
                    await ask(seed, "a" if seed % 2 else "")
                await agrees(fleet, engine, agent)
                await engine.restart()
                await ask(3)
                await agrees(fleet, engine, agent)
            async with control_plane(port) as fleet:  # a new one, with an empty index
                await agrees(fleet, engine, agent)
                await ask(5)
                await agrees(fleet, engine, agent)
        async with control_plane(port) as fleet, running(settings) as agent:  # a new agent: everything from the replay
            await ControlPlane().until(lambda: agent.feed.streams)
            await agrees(fleet, engine, agent)


async def test_what_an_engine_serves_of_hashes_that_look_ahead_is_predicted(
    make_settings: Callable[..., AgentSettings], tmp_path: Any
) -> None:
    """Two prompts that part right after a block share one block less than their tokens say; no last block is lost."""
    port = take_ports({"internal": 0})["internal"]
    (tmp_path / "token").write_text("token")
    (tmp_path / "index.key").write_text(base64.urlsafe_b64encode(FLEET_INDEX_KEY).decode())
    options: dict[str, Any] = {"api_key": "key", "num_blocks": 40, "block_size": 32, "plugin": True, "lookahead": 1}
    shared = prompt(0, 96)
    async with FakeEngine(**options) as engine, aiohttp.ClientSession() as http, control_plane(port) as fleet:
        settings = make_settings(
            engine_url=engine.url,
            control_planes=f"ws://127.0.0.1:{port}",
            token_file=tmp_path / "token",
            weights="fake",
        )
        async with running(settings) as agent:
            await ControlPlane().until(lambda: agent.feed.streams)
            predicted, served = [], []
            for more in ([1, 2], [1, 3], [9, 9], [9]):
                keyer = fleet.keyer("fake")
                keys = keyer.keys([*shared, *more]) if keyer else []
                held = list(fleet._index.stats().held)
                predicted.append(32 * sum(fleet._index.match(keys, held)))
                body = {"model": "fake", "prompt": [*shared, *more], "max_tokens": 1}
                async with http.post(
                    engine.url + "/v1/completions", json=body, headers={"Authorization": "Bearer key"}
                ) as answer:
                    served.append((await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"])
                await agrees(fleet, engine, agent)
            assert predicted == served == [0, 96, 64, 96]


async def test_a_pools_warm_prefixes_are_where_its_tenants_requests_find_them(
    make_settings: Callable[..., AgentSettings], tmp_path: Any
) -> None:
    port = take_ports({"internal": 0})["internal"]
    (tmp_path / "token").write_text("token")
    (tmp_path / "index.key").write_text(base64.urlsafe_b64encode(FLEET_INDEX_KEY).decode())
    (tmp_path / "policy.json").write_bytes(msgspec.json.encode(engine_policy(parse_pools(POOL + WARM)[0])))
    settings = make_settings(
        engine_url="",
        control_planes=f"ws://127.0.0.1:{port}",
        token_file=tmp_path / "token",
        policy_file=tmp_path / "policy.json",
        weights="fake",
    )
    async with FakeEngine(api_key="key", num_blocks=40, block_size=32, plugin=True) as engine:
        settings = settings.model_copy(update={"engine_url": engine.url})
        async with running(settings) as agent:
            await ControlPlane().until(lambda: agent.phase is Phase.WARMING)
            async with control_plane(port, POOL + WARM) as fleet:
                await ControlPlane().until(lambda: agent.phase is Phase.READY)
                salts = {tenant_salt(SALT_KEY, TenantId(tenant)) for tenant in ("acme", "umbrella")}
                assert {salt for salt, _ in engine.held_chains()} == salts
                await agrees(fleet, engine, agent)
                await engine.restart()
                await ControlPlane().until(lambda: {salt for salt, _ in engine.held_chains()} == salts)
                await agrees(fleet, engine, agent)
                [worker] = fleet.view().workers
                assert (worker.warmth.done, worker.warmth.total) == (2, 2)
                await ControlPlane().until(lambda: fleet.view().workers[0].policy_generation == 1)
