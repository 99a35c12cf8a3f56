"""Builds the application of the internal port: agents' reports, admin API, console, metrics and probes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute

from cachefleet_controlplane.admin.admin_app import PATH as ADMIN_PATH
from cachefleet_controlplane.admin.admin_app import AdminParts, admin_app
from cachefleet_controlplane.admin.problem_responses import http_problem
from cachefleet_controlplane.console.console_app import Console
from cachefleet_controlplane.index_queries.index_queries import IndexQueries
from cachefleet_controlplane.index_queries.query_routes import query_routes
from cachefleet_controlplane.internal_endpoints import healthz, metrics_endpoint
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.report_server.server import ReportsServer
from cachefleet_controlplane.timed_bodies import TimedBodies
from cachefleet_controlplane.wiring.pool_parts import Authority
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from cachefleet_core.report_frames import PATH as REPORTS_PATH


@dataclass(frozen=True, slots=True)
class InternalApp:
    """The application, and the console in it, whose streams end before the port closes."""

    app: Starlette
    console: Console


def internal_app(
    parts: AdminParts,
    reports: ReportsServer,
    authority: Authority,
    metrics: Metrics,
    queries: IndexQueries,
    *,
    readyz: Callable[[Request], Awaitable[Response]],
    body_seconds: float,
    bounds: ReplicaBounds,
) -> InternalApp:
    """Build it of the parts that the admin API shows and changes."""
    admin = admin_app(parts, authorize=authority.admin, user_of=authority.user_of, max_bytes=bounds.admin_bytes)
    console = Console(parts.fleet, admin=admin, authorize=authority.admin)
    app = Starlette(
        middleware=[Middleware(TimedBodies, seconds=body_seconds, stall_seconds=bounds.stall_seconds)],
        routes=[
            WebSocketRoute(REPORTS_PATH, reports),
            Route(REPORTS_PATH, reports),
            Mount(ADMIN_PATH, admin),
            Mount(Console.path, console),
            *query_routes(queries, authorize=authority.admin, user_of=authority.user_of),
            Route("/metrics", metrics_endpoint(metrics.registry)),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ],
        # Also for paths under the mount that no pattern matches, such as those with a line break.
        exception_handlers={HTTPException: http_problem},
    )
    return InternalApp(app, console)
