"""A whole control plane before a fake engine, attacked on real sockets; after each attack others must be served."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.controlplane.gateway.harness import MODEL, engine
from tests.controlplane.wiring.test_control_plane import Plane, running
from tests.fakes.engine import FakeEngine

CHAT: Final = "/v1/chat/completions"
ADMIN: Final = "for-people"
AGENT: Final = "for-agents"
ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """The control plane's two ports, and the engine behind it."""

    plane: Plane
    worker: FakeEngine

    @property
    def gateway(self) -> int:
        """Port of the clients' API."""
        return _port(self.plane.gateway)

    @property
    def internal(self) -> int:
        """Port of the admin API, the agents and the probes."""
        return _port(self.plane.internal)

    async def post(self, url: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer to a JSON body."""
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        given = {"content-type": "application/json"} | {name.replace("_", "-"): told for name, told in headers.items()}
        async with aiohttp.ClientSession() as http, http.post(url, data=data, headers=given) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.read()

    async def chat(self, text: str = "hello", key: str = "", **changes: Any) -> tuple[int, dict[str, str], bytes]:
        """A chat through the gateway, with an API key if there is one."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2} | changes
        return await self.post(self.plane.gateway + CHAT, body, **headers)

    async def admin(self, method: str, path: str, body: Any = None, token: str = ADMIN) -> tuple[int, Any]:
        """Status and JSON of the admin API's answer."""
        url, headers = f"{self.plane.internal}/admin/v1{path}", {"authorization": f"Bearer {token}"} if token else {}
        async with aiohttp.ClientSession() as http, http.request(method, url, json=body, headers=headers) as answer:
            text = await answer.read()
            return answer.status, json.loads(text) if text else None

    async def tenant(self, name: str, **settings: Any) -> str:
        """Make a tenant; returns its API key."""
        assert (await self.admin("POST", "/tenants", {"name": name, **settings}))[0] == 201
        return str((await self.admin("POST", f"/tenants/{name}/keys", {}))[1]["key"])

    async def lives(self) -> None:
        """Both ports answer."""
        assert await self.plane.get("/healthz") == (200, b"ok\n")
        assert (
            await raw(self.gateway, b"GET /v1/nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        ).startswith(b"HTTP/1.1 404 ")

    def sent(self) -> list[dict[str, Any]]:
        """Bodies of the chats that reached the engine."""
        return [json.loads(seen.body) for seen in self.worker.requests if seen.path == CHAT]


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


@asynccontextmanager
async def attacked(folder: Path, *, worker: Any = None, **settings: Any) -> AsyncIterator[Target]:
    """A control plane with these settings; at the end it must still live."""
    async with contextlib.AsyncExitStack() as stack:
        one: Any = worker or await stack.enter_async_context(engine())
        target = Target(await stack.enter_async_context(running(folder, one, **settings)), one)
        yield target
        await target.lives()


async def raw(port: int, pieces: bytes | Iterable[bytes]) -> bytes:
    """All that is answered to these bytes until the connection ends; b"" where it is reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.ensure_future(_answer(reader))
    with contextlib.suppress(ConnectionError):
        for piece in [pieces] if isinstance(pieces, bytes) else pieces:
            if answer.done():
                break
            writer.write(piece)
            await writer.drain()
    async with asyncio.timeout(ANSWER_SECONDS):
        told = await answer
    writer.close()
    return told


async def _answer(reader: asyncio.StreamReader) -> bytes:
    told = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            told += piece
    return bytes(told)
