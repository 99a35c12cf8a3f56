"""The agent as a process of its own: told by its environment, ended by a signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable

import aiohttp

from cachefleet_core.exit_statuses import KEY_REFUSED
from cachefleet_core.report_frames import Phase
from cachefleet_local.fleet.ports import take_ports
from cachefleet_worker.agent.settings import AgentSettings
from tests.fakes.engine import FakeEngine
from tests.worker.agent.fake_control_plane import ControlPlane


def environment(settings: AgentSettings, **changes: str) -> dict[str, str]:
    named = {"worker", "pool", "engine_url", "index_key_file", "worker_key_file", "http_host"}
    told = {f"CACHEFLEET_{name.upper()}": str(getattr(settings, name)) for name in named}
    return os.environ | told | {f"CACHEFLEET_{name.upper()}": value for name, value in changes.items()}


def test_it_starts_without_what_only_pools_need() -> None:
    """Their schema and YAML are a quarter of a start, in every worker's pod."""
    code = "import sys, cachefleet_worker.agent.__main__; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"cachefleet_core.pool.spec", "yaml"}.isdisjoint(told.stdout.split())


async def test_sigterm_drains_and_ends_well(make_settings: Callable[..., AgentSettings], plane: ControlPlane) -> None:
    port = str(take_ports({"agent": 0})["agent"])
    async with FakeEngine(api_key="key", inter_token_seconds=0.02) as engine, aiohttp.ClientSession() as http:
        told = environment(make_settings(engine_url=engine.url), control_planes=plane.url, http_port=port)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cachefleet_worker.agent", env=told, stderr=PIPE
        )
        assert process.stderr is not None
        await plane.until(lambda: plane.state and plane.state.phase is Phase.READY, 60)
        async with http.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        body = {"model": "fake", "prompt": [1, 2, 3], "max_tokens": 40, "ignore_eos": True}
        request = asyncio.create_task(
            _status(http, engine.url + "/v1/completions", body),
        )
        await plane.until(lambda: engine.worker.scheduler.running)
        engine.worker._stepping.clear()  # so that it is under way for as long as is looked at
        await plane.until(lambda: plane.state and plane.state.running == 1)
        process.send_signal(signal.SIGTERM)
        await plane.until(lambda: plane.state and plane.state.phase is Phase.DRAINING)
        assert process.returncode is None
        engine.worker._stepping.set()
        assert await request == 200
        async with asyncio.timeout(40):
            assert await process.wait() == 0
        lines = [json.loads(line) for line in (await process.stderr.read()).splitlines()]
        assert "draining" in [line["message"] for line in lines]
        assert all((line["worker"], line["pool"]) == ("demo-0", "default/demo") for line in lines)


async def test_in_a_pod_it_drains_when_asked_and_ends_when_told(
    make_settings: Callable[..., AgentSettings], plane: ControlPlane
) -> None:
    port = str(take_ports({"agent": 0})["agent"])
    pod = {"drain_path": "/drain/abc", "drain_seconds": "120", "after_drain": "stay"}
    async with FakeEngine(api_key="key") as engine, aiohttp.ClientSession() as http:
        told = environment(make_settings(engine_url=engine.url), control_planes=plane.url, http_port=port, **pod)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cachefleet_worker.agent", env=told, stderr=PIPE
        )
        await plane.until(lambda: plane.state and plane.state.phase is Phase.READY, 60)
        async with http.get(f"http://127.0.0.1:{port}/drain/abc") as answer:
            assert answer.status == 200
        await plane.until(lambda: plane.state and plane.state.phase is Phase.DRAINING)
        await engine.crash()  # vLLM has ended
        process.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(process.communicate(), 60)  # not the 120 s of another drain
        assert process.returncode == 0
        assert b"drained, the engine may be stopped" in said


async def _status(http: aiohttp.ClientSession, url: str, body: dict[str, object]) -> int:
    async with http.post(url, json=body, headers={"Authorization": "Bearer key"}) as answer:
        await answer.read()
        return answer.status


async def test_a_port_that_is_taken_is_said(make_settings: Callable[..., AgentSettings], plane: ControlPlane) -> None:
    told = environment(make_settings(), http_port=str(plane.port), poll_seconds="0.05")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cachefleet_worker.agent", env=told, stderr=PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 40)
    assert process.returncode == 2
    assert b"address already in use" in said
    assert said.count(b"CACHEFLEET_POLL_SECONDS is no longer read: ") == 1


async def test_an_engine_that_refuses_the_key_ends_it_with_a_status_of_its_own(
    make_settings: Callable[..., AgentSettings], plane: ControlPlane
) -> None:
    port = str(take_ports({"agent": 0})["agent"])
    async with FakeEngine(api_key="another") as engine:
        told = environment(make_settings(engine_url=engine.url), control_planes=plane.url, http_port=port)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cachefleet_worker.agent", env=told, stderr=PIPE
        )
        _, text = await asyncio.wait_for(process.communicate(), 40)
    assert process.returncode == KEY_REFUSED
    last = json.loads(text.splitlines()[-1])
    assert last["message"].startswith("the engine answers HTTP 401 to the worker key: it was started with another one.")
