"""The whole control plane in one process: files in, two ports out, and an orderly end."""

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cachefleet_controlplane.inherited_sockets import inherited_sockets
from cachefleet_controlplane.pools.source import FilePoolSource
from cachefleet_controlplane.wiring.control_plane import ControlPlane
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from cachefleet_controlplane.wiring.replica_process import serve
from cachefleet_controlplane.wiring.settings import Settings, SettingsError
from cachefleet_local.fleet.ports import take_ports
from tests.controlplane.gateway.harness import FLEET_KEY, MODEL, POOL, chat, engine
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

POOL_FILE = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: demo}
spec:
  model: {name: fake, source: fake, weightsMiB: 1}
  engine: {image: fake, blockSize: 16, maxModelLen: 4096}
  device: {resource: nvidia.com/gpu, memoryMiB: 8192, activationMiB: 1024, floorMiB: 1024}
"""

# Files are read again soon. A busy machine is slow, which is not what is tried here.
BOUNDS = ReplicaBounds(pool_file_poll_seconds=0.02, connect_seconds=30, store_seconds=30)


@dataclass
class Plane:
    gateway: str
    internal: str
    plane: ControlPlane
    stop: asyncio.Event
    serving: "asyncio.Task[int]"

    async def get(self, path: str, token: str = "") -> tuple[int, bytes]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with aiohttp.ClientSession() as http, http.get(self.internal + path, headers=headers) as answer:
            return answer.status, await answer.read()

    async def health(self) -> int:
        async with aiohttp.ClientSession() as http, http.get(self.gateway + "/health") as answer:
            return answer.status

    async def chat(self, **changes: Any) -> tuple[int, bytes]:
        url, body = self.gateway + "/v1/chat/completions", chat("x", **changes)
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
            return answer.status, await answer.read()


def settings(folder: Path, worker: FakeEngine, ports: dict[str, int], **changes: Any) -> Settings:
    listed = {POOL: [{"name": "demo-0", "url": worker.url, "ready": True}]}
    files = {
        "pool.yaml": POOL_FILE,
        "endpoints.json": json.dumps(listed),
        "fleet.key": FLEET_KEY.format(),
        "reports.token": "for-agents",
        "admin.token": "for-people",
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    own: dict[str, Any] = {
        "gateway_port": ports["gateway"],
        "internal_port": ports["internal"],
        "pool_file": folder / "pool.yaml",
        "endpoints_file": folder / "endpoints.json",
        "fleet_key_file": folder / "fleet.key",
        "reports_token_file": folder / "reports.token",
        "admin_token_file": folder / "admin.token",
        "data_dir": folder / "data",
        "withdraw_seconds": 0,
        "startup_seconds": 0,
        # A busy machine is slow, which is not what is tried here.
        "database_timeout_seconds": 30,
        "render_timeout_seconds": 60,
    }
    return Settings(**(own | changes))


@asynccontextmanager
async def running(
    folder: Path, worker: FakeEngine, *, ready: bool = True, bounds: ReplicaBounds = BOUNDS, **changes: Any
) -> AsyncIterator[Plane]:
    """``ready``: begin only when it is."""
    statuses = {200} if ready else {200, 503}
    made = await _begun(folder, worker, bounds, changes)
    if not await _answers(made, statuses):  # another process has opened a port since it was found free
        made = await _begun(folder, worker, bounds, changes)
        assert await _answers(made, statuses)
    try:
        yield made
    finally:
        made.stop.set()
        assert await made.serving == 0


async def _begun(folder: Path, worker: FakeEngine, bounds: ReplicaBounds, changes: dict[str, Any]) -> Plane:
    ports = take_ports({"gateway": 0, "internal": 0})
    told = settings(folder, worker, ports, **changes)
    plane, stop = ControlPlane(told, bounds), asyncio.Event()
    serving = asyncio.create_task(serve(plane, told, stop))
    return Plane(f"http://127.0.0.1:{ports['gateway']}", f"http://127.0.0.1:{ports['internal']}", plane, stop, serving)


async def _answers(made: Plane, statuses: set[int]) -> bool:
    """Once it does; False where it has ended."""
    async with asyncio.timeout(40):
        while not made.serving.done():
            try:
                if (await made.get("/readyz"))[0] in statuses:
                    return True
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.02)
    return False


@pytest.mark.parametrize("api_keys", ["auto", "required"])
async def test_a_replica_that_never_read_its_tenants_takes_no_traffic(tmp_path: Path, api_keys: str) -> None:
    store = tmp_path / "data" / "controlplane.db"
    store.mkdir(parents=True)
    async with engine() as worker, running(tmp_path, worker, ready=False, api_keys=api_keys) as made:
        await until(made.plane.fleet.informed.is_set)
        await until(made.plane.tenancy.tenants.informed.is_set)
        status, body = await made.get("/readyz")
        assert (status, await made.health(), (await made.chat())[0]) == (503, 503, 503)
        assert json.loads(body)["tenants"]["problem"]
        store.rmdir()
        await until(lambda: made.plane.readiness()[0])
        assert (await made.chat())[0] == (200 if api_keys == "auto" else 401)


async def test_everything_is_where_it_should_be(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made:
        assert (await made.chat())[0] == 200
        assert (await made.get("/healthz")) == (200, b"ok\n")
        status, page = await made.get("/metrics")
        assert status == 200
        for series in (
            b"requests_total{",
            b"pool_workers{",
            b"render_failures",
            b"index_bytes ",
        ):
            assert b"cachefleet_" + series in page
        ready = json.loads((await made.get("/readyz"))[1])
        assert ready["pools"] == {"known": True, "problem": ""}
        assert ready["transport"] == {"version": made.plane.completions.version}
        assert (await made.get("/admin/v1/pools"))[0] == 401
        assert (await made.get("/admin/v1/pools", "for-agents"))[0] == 401
        pools = json.loads((await made.get("/admin/v1/pools", "for-people"))[1])["items"]
        assert [pool["key"] for pool in pools] == [POOL]
        decisions = json.loads((await made.get("/admin/v1/decisions", "for-people"))[1])["items"]
        assert [decision["model"] for decision in decisions] == [MODEL]
        assert (await made.get("/v1/reports"))[0] == 426
        assert (await made.get("/v1/models"))[0] == 404  # of the gateway's port alone


async def test_a_request_is_explained_as_it_is_then_recorded(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made, aiohttp.ClientSession() as http:
        url, body = made.internal + "/admin/v1/explain", {"model": MODEL, "prompt": "hello"}
        async with http.post(url, json=body) as answer:
            assert answer.status == 401
        http.headers["authorization"] = "Bearer for-people"
        async with http.post(url, json=body) as answer:
            assert answer.status == 200
            dry = await answer.json()
        assert (dry["id"], dry["verdict"], dry["tenant"], dry["saltVersion"]) == ("dry-run", "route", "default", 1)
        assert [one["chosen"] for one in dry["candidates"]] == [True]
        for changes, query, status in (
            ({"model": "no"}, {}, 404),
            ({}, {"tenant": "nobody"}, 404),
            ({}, {"tenant": ""}, 422),
        ):
            async with http.post(url, json=body | changes, params=query) as answer:
                assert (answer.status, answer.content_type) == (status, "application/problem+json")
        assert json.loads((await made.get("/admin/v1/decisions", "for-people"))[1])["items"] == []
        assert (await made.chat())[0] == 200
        (real,) = json.loads((await made.get("/admin/v1/decisions", "for-people"))[1])["items"]
        assert set(real) == set(dry)
        assert (real["tenant"], real["rung"], real["why"]) == (dry["tenant"], "render", dry["why"])


async def test_reports_are_taken_from_agents_alone(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made, aiohttp.ClientSession() as http:
        url = made.internal + "/v1/reports"
        headers = {"authorization": "Bearer for-agents"}
        async with http.ws_connect(url, protocols=["cachefleet.reports.v1"], headers=headers) as socket:
            assert socket.protocol == "cachefleet.reports.v1"
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await http.ws_connect(url)


async def test_new_workers_and_a_new_policy_need_no_restart(tmp_path: Path) -> None:
    async with engine() as worker, engine() as second, running(tmp_path, worker) as made:
        both = [{"name": f"demo-{i}", "url": one.url, "ready": True} for i, one in enumerate((worker, second))]
        (tmp_path / "endpoints.json").write_text(json.dumps({POOL: both}))
        await until(lambda: len(made.plane.fleet.view().workers) == 2)
        async with aiohttp.ClientSession() as http:
            told = {"authorization": "Bearer for-people"}
            url = made.internal + "/admin/v1/routing"
            async with http.put(url, json={"policy": "roundRobin"}, headers=told) as answer:
                assert answer.status == 200
        (noted,) = json.loads((await made.get("/admin/v1/audit", "for-people"))[1])["items"]
        assert (noted["username"], noted["address"]) == ("admin token", "127.0.0.1")
        for _ in range(4):
            assert (await made.chat())[0] == 200
        asked = [[seen.path for seen in one.requests] for one in (worker, second)]
        # Round robin takes turns, and renders nothing.
        assert asked == [["/v1/chat/completions"] * 2] * 2


async def test_a_pool_file_is_held_to_what_workers_report(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made:
        source = made.plane.state.source
        assert isinstance(source, FilePoolSource)
        assert source._announced == made.plane.fleet.announced


async def test_an_orderly_end_lets_answers_end(tmp_path: Path) -> None:
    async with engine(inter_token_seconds=0.05) as worker, running(tmp_path, worker) as made:
        asking = asyncio.create_task(made.chat(stream=True, max_tokens=20, ignore_eos=True))
        await until(lambda: made.plane.gateway.under_way == 1)
        made.stop.set()
        await until(lambda: made.plane.readiness()[1]["draining"] is True)
        status, body = await made.get("/readyz")
        assert (status, json.loads(body)["ready"]) == (503, False)
        status, body = await asking
        assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
        assert await made.serving == 0


async def test_the_gateways_health_is_that_of_readyz(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made:
        assert await made.health() == 200
        made.plane.withdraw()
        assert await made.health() == 503


async def test_decisions_are_streamed_until_the_viewer_goes_or_the_replica_ends(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made, aiohttp.ClientSession() as http:
        url, told = made.internal + "/admin/v1/decisions/stream", {"authorization": "Bearer for-people"}
        async with http.get(url, headers=told) as leaving, http.get(url, headers=told) as staying:
            await until(lambda: len(made.plane.decisions.feed) == 2)
            assert (await made.chat())[0] == 200
            for stream in (leaving, staying):
                while not (line := await stream.content.readline()).startswith(b"data: "):
                    pass
                assert json.loads(line.removeprefix(b"data: "))["status"] == 200
            leaving.close()
            await until(lambda: len(made.plane.decisions.feed) == 1)
            made.stop.set()
            async with asyncio.timeout(10):
                assert b"event" not in await staying.content.read()


async def test_answers_that_take_too_long_end_with_an_error(tmp_path: Path) -> None:
    async with engine(inter_token_seconds=0.5) as worker, running(tmp_path, worker, drain_seconds=1) as made:
        asking = asyncio.create_task(made.chat(stream=True, max_tokens=100, ignore_eos=True))
        await until(lambda: made.plane.gateway.under_way == 1)
        made.stop.set()
        async with asyncio.timeout(40):
            assert await made.serving == 0
        assert b'"server_restarting"' in (await asking)[-1]


async def test_a_store_that_fails_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    async with engine() as worker, running(tmp_path, worker, data_dir=tmp_path / "blocked") as made:
        assert (await made.chat())[0] == 200
        await until(lambda: made.plane.decisions.problem not in ("", "not opened yet"))
        status, body = await made.get("/readyz")
        assert status == 200
        assert json.loads(body)["store"]["problem"]


async def test_an_inherited_socket_is_served_and_outlives_the_process(tmp_path: Path) -> None:
    async with engine() as worker:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            given = inherited_sockets({"CACHEFLEET_SOCKETS": str(os.dup(listener.fileno()))})
            told = settings(tmp_path, worker, {"gateway": port, "internal": 0})
            plane, stop = ControlPlane(told, BOUNDS), asyncio.Event()
            serving = asyncio.create_task(serve(plane, told, stop, sockets=given))
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with aiohttp.ClientSession() as http, http.post(url, json=chat("hello")) as answer:
                assert answer.status == 200  # it has waited until the pools were known
            stop.set()
            assert await serving == 0
            socket.create_connection(("127.0.0.1", port), timeout=5).close()


async def test_who_waits_at_an_inherited_socket_is_served_once_the_replica_is_ready(tmp_path: Path) -> None:
    """No agent comes, and the replica may wait for one: whoever else has the socket takes the request meanwhile."""
    async with engine() as worker:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            given = inherited_sockets({"CACHEFLEET_SOCKETS": str(os.dup(listener.fileno()))})
            told = settings(tmp_path, worker, {"gateway": port, "internal": 0}, startup_seconds=1.5)
            plane, stop = ControlPlane(told, BOUNDS), asyncio.Event()
            serving = asyncio.create_task(serve(plane, told, stop, sockets=given))
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with aiohttp.ClientSession() as http, http.post(url, json=chat("hello")) as answer:
                assert (answer.status, plane.readiness()[0]) == (200, True)
            stop.set()
            assert await serving == 0


@pytest.mark.parametrize("given", ["x", "99999", "-1"])
def test_what_is_no_socket_is_not_inherited(given: str) -> None:
    assert inherited_sockets({"CACHEFLEET_SOCKETS": ""}) == inherited_sockets({}) == {}
    with pytest.raises(ValueError, match="CACHEFLEET_SOCKETS"):
        inherited_sockets({"CACHEFLEET_SOCKETS": given})


async def test_a_port_in_use_ends_it_with_1(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made:
        taken = int(made.gateway.rsplit(":", 1)[1])
        told = settings(tmp_path, worker, {"gateway": taken, "internal": 0})
        async with asyncio.timeout(40):
            assert await serve(ControlPlane(told), told, asyncio.Event()) == 1


def test_wrong_settings_are_told_line_by_line() -> None:
    environment = {"CACHEFLEET_POLICY": "best", "CACHEFLEET_GATEWAY_PORT": "x"}
    told = subprocess.run(
        [sys.executable, "-m", "cachefleet_controlplane"], env=environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    names = {line.split(":")[0] for line in told.stderr.splitlines()}
    assert {"CACHEFLEET_POLICY", "CACHEFLEET_GATEWAY_PORT", "CACHEFLEET_FLEET_KEY_FILE"} <= names


def test_a_variable_that_is_no_longer_read_is_told_once(tmp_path: Path) -> None:
    """Before anything else can fail, here for want of a fleet key."""
    files = ("FLEET_KEY_FILE", "POOL_FILE", "ENDPOINTS_FILE", "ADMIN_TOKEN_FILE")
    environment = {f"CACHEFLEET_{name}": str(tmp_path / name) for name in files}
    environment |= {"CACHEFLEET_WATCH_PAGE": "100", "CACHEFLEET_USAGE_QUEUE": ""}
    command = [sys.executable, "-m", "cachefleet_controlplane"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert told.stderr.count("CACHEFLEET_WATCH_PAGE is no longer read: ") == 1
    assert "USAGE_QUEUE" not in told.stderr


@pytest.mark.parametrize("content", ["", "short", base64.b64encode(b"x" * 31).decode()])
async def test_a_fleet_key_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    async with engine() as worker:
        told = settings(tmp_path, worker, {"gateway": 0, "internal": 0})
    (tmp_path / "fleet.key").write_text(content)
    with pytest.raises(ValueError, match="32 bytes"):
        ControlPlane(told)


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_certificates_that_cannot_be_used_are_told_by_their_setting(tmp_path: Path, content: str | None) -> None:
    async with engine() as worker:
        told = settings(tmp_path, worker, {"gateway": 0, "internal": 0}, tls_folder=tmp_path / "tls")
    if content is not None:
        (tmp_path / "tls").mkdir()
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (tmp_path / "tls" / name).write_text(content)
    with pytest.raises(SettingsError) as error:
        ControlPlane(told)
    assert error.value.lines[0].startswith("CACHEFLEET_TLS_FOLDER: ")


async def test_what_an_answer_cost_is_in_the_last_hour(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made:
        assert (await made.chat())[0] == 200
        await until(lambda: bool(made.plane.history.cache.steps(POOL, time.time())))
        made.plane._sampler.sample()
        told = {}
        for path in ("history", "lost-hits", "prefixes"):
            status, body = await made.get(f"/admin/v1/{path}", "for-people")
            assert status == 200
            told[path] = json.loads(body)
        points, counters = told["history"]["points"], worker.worker.scheduler.counters
        assert sum(point["promptTokens"] for point in points) == counters.queries > 0
        assert points[-1]["queued"] == 0
        [cause] = told["lost-hits"]["causes"]
        assert (cause["cause"], cause["tokens"]) == ("not_rendered", counters.queries - counters.hits)
        assert told["prefixes"] == {"items": []}
