"""Stands between an operator and the API server, counts writes, can strike after a given one, or refuse all."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import aiohttp
from aiohttp import web

from e2e.cluster import connections
from e2e.cluster.api_server import ApiServer, Identity

_COLLECTIONS = ("/prefixcachepools", "/deployments", "/services", "/secrets", "/configmaps", "/replicasets", "/pods")
_HOP = {"connection", "content-length", "content-encoding", "transfer-encoding", "host"}


class WriteProxy:
    """Forwards as ``identity``, in a thread of its own. Leases are not counted: they are no part of the work."""

    def __init__(self, cluster: ApiServer, identity: Identity) -> None:
        pair = cluster.client_pair(identity)
        self._ssl = ssl.create_default_context(cafile=str(cluster.ca))
        self._ssl.load_cert_chain(pair.certificate, pair.key)
        self._target = cluster.url
        self.writes: list[str] = []
        self._strike_at = 0
        self._strike: Callable[[], None] = lambda: None
        self.refused: list[str] = []
        self._refuses = False
        self._lists: dict[str, tuple[dict[str, str], bytes]] = {}
        """By path, the last list of each kind that was passed on."""
        self._old_lists = False
        self.lists_of_before = 0
        """How many lists were answered as of before."""
        self._streams: set[asyncio.Task[None]] = set()
        self._ready, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(20)

    def strike(self, after: int, action: Callable[[], None]) -> None:
        """Count anew; once the write number ``after`` has been carried out, act, and keep its answer back."""
        self.writes.clear()
        self._strike_at, self._strike = after, action

    @contextmanager
    def unauthorized(self) -> Iterator[None]:
        """Answer 401 to everything, and end what is being watched."""
        self._refuses = True
        self._loop.call_soon_threadsafe(self._end_streams)
        try:
            yield
        finally:
            self._refuses = False

    @contextmanager
    def stale(self) -> Iterator[None]:
        """Answer lists as they were answered last, whatever has changed since; watches go on from there."""
        self._old_lists = True
        try:
            yield
        finally:
            self._old_lists = False

    def _end_streams(self) -> None:
        for stream in self._streams:
            stream.cancel()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(ssl=self._ssl, limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as client:
            self._client = client
            app = web.Application(client_max_size=4 * 1024 * 1024)
            app.router.add_route("*", "/{path:.*}", self._forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._ready.set()
            while not self._over.is_set():  # noqa: ASYNC110  # set from another thread
                await asyncio.sleep(0.05)
            await runner.cleanup()
        await connections.closed()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if self._refuses:
            self.refused.append(request.raw_path)
            status = {"kind": "Status", "status": "Failure", "reason": "Unauthorized", "code": 401}
            return web.json_response({**status, "message": "Unauthorized"}, status=401)
        if self._old_lists and request.method == "GET" and request.raw_path in self._lists:
            self.lists_of_before += 1
            told, document = self._lists[request.raw_path]
            return web.Response(headers=told, body=document)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        url = f"{self._target}{request.raw_path}"
        body = await request.read()
        async with self._client.request(request.method, url, headers=headers, data=body or None) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            if request.method not in {"GET", "HEAD"}:
                return self._counted(
                    request, web.Response(status=answer.status, headers=kept, body=await answer.read())
                )
            if answer.status == 200 and request.query.get("watch") is None and request.path.endswith(_COLLECTIONS):
                self._lists[request.raw_path] = kept, await answer.read()
                return web.Response(headers=kept, body=self._lists[request.raw_path][1])
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            await self._streamed(answer, response)
            return response

    async def _streamed(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        async def pass_on() -> None:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)

        stream = asyncio.create_task(pass_on())
        self._streams.add(stream)
        try:
            await asyncio.wait({stream})
        finally:
            self._streams.discard(stream)
            stream.cancel()

    def _counted(self, request: web.Request, response: web.Response) -> web.Response:
        if "/leases" in request.path:
            return response
        self.writes.append(f"{request.method} {request.path}")
        if len(self.writes) == self._strike_at:
            self._strike()
            raise ConnectionResetError("struck")
        return response
