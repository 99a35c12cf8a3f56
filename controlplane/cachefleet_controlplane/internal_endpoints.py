"""What the internal port answers to anybody: /metrics, and /healthz."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from cachefleet_controlplane.exposition import exposition


def metrics_endpoint(registry: CollectorRegistry) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of /metrics."""

    async def metrics(request: Request) -> Response:
        body, kind = exposition(registry, request.headers.get("accept", ""))
        return Response(body, media_type=kind)

    return metrics


async def healthz(_: Request) -> Response:
    """Answer that the process lives."""
    return Response(b"ok\n", media_type="text/plain")
