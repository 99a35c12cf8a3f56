"""A model engine's snapshots over HTTP, as the plugin serves them, and ways in which they go wrong."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Self

import msgspec
from aiohttp import web

from cachefleet_worker.agent.engines.vllm.events.snapshot_client import PATH
from cachefleet_worker.plugin.snapshot.event_batches import END, Header, framed
from tests.worker.agent.model import ModelEngine


class SnapshotServer:
    """Serves ``engine`` on a free port to who has the key, plain or with ``tls``. ``change`` alters a body on its way,
    ``status`` refuses.
    """

    def __init__(self, engine: ModelEngine, *, key: str = "key", tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.engine = engine
        self._key = key
        self.change: Callable[[list[bytes]], list[bytes]] = list
        self.status = 200
        self.served = 0

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get(PATH, self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def frames(self) -> list[bytes]:
        sequence, payloads = self.engine.snapshot()
        ledger = self.engine.ledger
        header = Header(self.engine.boot, 0, sequence, len(ledger), ledger.totals())
        return [*map(framed, (msgspec.msgpack.encode(header), *payloads)), END]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        assert request.query["rank"] == "0"
        self.served += 1
        if request.headers.get("X-Cachefleet-Token") != self._key:
            return web.Response(status=403)
        if self.status != 200:
            return web.Response(status=self.status)
        response = web.StreamResponse()
        await response.prepare(request)
        for frame in self.change(self.frames()):
            await response.write(frame)
        return response
