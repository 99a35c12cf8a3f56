"""HTTP server of the operator's /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from cachefleet_operator.metrics import Metrics

Check = Callable[[], str]
"""Returns what is wrong, "" where nothing is."""


def application(alive: Check, ready: Check, metrics: Metrics) -> web.Application:
    """The three routes: 503 with the problem, else 200; /readyz fails where /healthz does, too."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(alive())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(alive() or ready())

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show)])
    return app


@asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the block runs; yields the port, which the kernel chooses where ``port`` is 0."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, None if host == "::" else host, port).start()  # of "::" asyncio takes IPv6 alone
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _answer(problem: str) -> web.Response:
    return web.Response(text=problem or "ok", status=503 if problem else 200)
