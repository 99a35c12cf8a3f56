"""The control plane's public port by HTTPS: the gateway's answers, WebSockets, and settings that cannot be used."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cachefleet_controlplane.wiring.control_plane import ControlPlane
from cachefleet_controlplane.wiring.replica_process import serve
from cachefleet_controlplane.wiring.settings import SettingsError
from cachefleet_core.tls_names import PRIVATE_KEY
from cachefleet_local.fleet.ports import take_ports
from tests.controlplane.gateway.harness import MODEL, chat, engine
from tests.controlplane.transport.http2_client import http2
from tests.controlplane.transport.tls_side import NAME, Secured, pair, trusting
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_control_plane import BOUNDS, settings
from tests.fakes.secret_volume import SecretVolume


async def test_chats_streams_and_websockets(tmp_path: Path) -> None:
    volume = SecretVolume(tmp_path / "public", pair())
    ports, stop = take_ports({"gateway": 0, "internal": 0}), asyncio.Event()
    async with engine() as worker:
        told = settings(tmp_path, worker, ports, gateway_tls_folder=volume.folder)
        plane = ControlPlane(told, BOUNDS)
        serving = asyncio.create_task(serve(plane, told, stop))
        try:
            await until(lambda: hasattr(plane, "internal") and plane.readiness()[0])
            await _asked(ports["gateway"])
            await _asked_by_http2(Secured(None, ports["gateway"], volume))  # type: ignore[arg-type] # not stopped
        finally:
            stop.set()
            assert await serving == 0


async def _asked(port: int) -> None:
    url = f"https://127.0.0.1:{port}/v1"
    known: dict[str, Any] = {"ssl": trusting(), "server_hostname": NAME}
    async with aiohttp.ClientSession() as http:
        async with http.post(url + "/chat/completions", json=chat("x"), **known) as answer:
            assert (answer.status, (await answer.json())["model"]) == (200, MODEL)
        async with http.post(url + "/chat/completions", json=chat("x", stream=True), **known) as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        async with http.ws_connect(url + "/responses", **known) as socket:
            await socket.send_json({"type": "response.create", "model": MODEL, "input": "x", "max_output_tokens": 2})
            while (event := await socket.receive_json())["type"] != "response.completed":
                assert event["type"] != "error", event


async def _asked_by_http2(side: Secured) -> None:
    async with http2(side) as client:
        fields = [("content-type", "application/json")]
        bodies = [json.dumps(chat("x", stream=stream)).encode() for stream in (False, True)]
        numbers = [await client.ask("/v1/chat/completions", body, fields=fields) for body in bodies]
        whole, streamed = [await client.answer(number) for number in numbers]
        assert (whole.status, json.loads(whole.body)["model"]) == (200, MODEL)
        assert streamed.body.endswith(b"data: [DONE]\n\n")


async def test_a_pair_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    volume = SecretVolume(tmp_path / "public", pair() | {PRIVATE_KEY: b"none"})
    async with engine() as worker:
        told = settings(tmp_path, worker, {"gateway": 0, "internal": 0}, gateway_tls_folder=volume.folder)
        with pytest.raises(SettingsError, match="CACHEFLEET_GATEWAY_TLS_FOLDER: "):
            ControlPlane(told)
