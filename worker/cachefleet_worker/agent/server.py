"""The agent's HTTP application: liveness, readiness with reasons, metrics, and the routes of other rooms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cachefleet_core.report_frames import Phase
from cachefleet_worker.agent.metrics import AgentMetrics


class Routes(Protocol):
    """Routes that a part of the agent serves."""

    def add_to(self, app: web.Application) -> None: ...


def agent_app(
    metrics: AgentMetrics,
    worker_state: Callable[[], tuple[Phase, list[str], str]],
    parts: Iterable[Routes],
) -> web.Application:
    """``/healthz``, ``/readyz``, ``/metrics`` and the routes of ``parts``.

    ``worker_state`` gives the phase, the reasons against readiness and a remark.
    """

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_request: web.Request) -> web.Response:
        phase, reasons, note = worker_state()
        body = {"ready": not reasons, "phase": phase, "reasons": reasons} | ({"note": note} if note else {})
        return web.json_response(body, status=503 if reasons else 200)

    async def exposition(_request: web.Request) -> web.Response:
        metrics.ready.set(0 if worker_state()[1] else 1)
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    for part in parts:
        part.add_to(app)
    return app
