"""The agent's own HTTP: liveness, readiness with its reasons, metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cachefleet_core.reports import Phase

from .metrics import AgentMetrics


def agent_app(metrics: AgentMetrics, standing: Callable[[], tuple[Phase, list[str]]]) -> web.Application:
    """``/healthz``, ``/readyz`` and ``/metrics``. ``standing`` gives the phase and what speaks against readiness."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_request: web.Request) -> web.Response:
        phase, reasons = standing()
        return web.json_response(
            {"ready": not reasons, "phase": phase, "reasons": reasons}, status=503 if reasons else 200
        )

    async def exposition(_request: web.Request) -> web.Response:
        metrics.ready.set(0 if standing()[1] else 1)
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    return app
