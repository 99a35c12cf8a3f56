"""``GET /v1/responses``, upgraded: who is let in; anybody else gets an HTTP error in place of the upgrade."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import Counter, Gauge

from cachefleet_controlplane.gateway.admit.request_bodies import RequestBodies
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.body_budget import BodyBudget, BodyShare
from cachefleet_controlplane.gateway.responses_socket.message_queue import MessageQueue
from cachefleet_controlplane.gateway.responses_socket.response_memory import ResponseMemory
from cachefleet_controlplane.gateway.responses_socket.responses_connection import ResponsesConnection, Serve
from cachefleet_controlplane.gateway.responses_socket.socket_limits import SocketLimits
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.tenants.directory import given_key
from cachefleet_controlplane.wire.errors import ApiError, error_body
from cachefleet_controlplane.wire.headers import NAMES, Header
from cachefleet_controlplane.wire.http_exchange import JSON, Receive, Reply, Scope, Send
from cachefleet_core.tenancy import TenantId

_UPGRADE: Final = {"upgrade": "websocket", "connection": "upgrade"}
_PLAIN: Final = "A GET of this path must be upgraded to a WebSocket. Send one request by POST, or connect by WebSocket."
_ORIGIN: Final = "A web page of another origin needs an API key to connect."
_OFF: Final = "There are no WebSockets here: CACHEFLEET_WEBSOCKET_CONNECTIONS is 0."
_REASONS: Final = ("gone", "idle", "limit", "restart", "flood", "failed")
"""Why a connection ended."""


class SocketMetrics:
    """Metrics of clients' WebSocket connections; their requests are counted with all others."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self._open = Gauge("cachefleet_websocket_connections", "WebSocket connections of clients", registry=registry)
        self._ended = Counter(
            "cachefleet_websocket_ends", "WebSocket connections that ended, by reason", ["reason"], registry=registry
        )
        self._refused = Counter(
            "cachefleet_websocket_refusals", "WebSocket handshakes refused, by status", ["status"], registry=registry
        )
        for reason in _REASONS:
            self._ended.labels(reason)

    def opened(self) -> None:
        """One more connection is open."""
        self._open.inc()

    def ended(self, reason: str) -> None:
        """One connection less is open; called once per ``opened``."""
        self._open.dec()
        self._ended.labels(reason).inc()

    def refused(self, status: int) -> None:
        """Count a handshake that was answered with an error."""
        self._refused.labels(str(status)).inc()


class ResponsesSocket:
    """ASGI application of all WebSocket handshakes; ``serve`` answers each request as if it had come by POST."""

    def __init__(
        self,
        serve: Serve,
        admission: AdmissionMiddleware,
        bodies: RequestBodies,
        *,
        metrics: Metrics,
        limits: SocketLimits | None = None,
    ) -> None:
        limits = limits or SocketLimits()
        self._serve = serve
        self._admission = admission
        self._bodies = bodies
        self._metrics = SocketMetrics(metrics)
        self._limits = limits
        self._places = BodyBudget(limits.connections, over="Too many WebSocket connections are open.")
        self._memory = BodyBudget(limits.all_memory_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        try:
            tenant = await self._admitted(scope)
            place = BodyShare(self._places, tenant)
            place.take(1)
        except ApiError as error:
            await self._deny(error, scope, send)
            return
        self._metrics.opened()
        ended = "failed"
        try:
            with place:
                ended = await self._connection(scope, receive, send, tenant).run()
        finally:
            self._metrics.ended(ended)

    async def _admitted(self, scope: Scope) -> TenantId:
        if scope["path"] != Endpoint.RESPONSES:
            raise ApiError(404, f"There is no WebSocket at {scope['path']}, only at {Endpoint.RESPONSES}.")
        if not self._limits.connections:
            raise ApiError(404, _OFF)
        if _foreign(scope["headers"]):
            raise ApiError(403, _ORIGIN)
        await self._admission.informed()
        with self._admission.enter(scope["headers"], limited=False) as admitted:
            return admitted.tenant.name

    def _connection(self, scope: Scope, receive: Receive, send: Send, tenant: TenantId) -> ResponsesConnection:
        return ResponsesConnection(
            scope,
            receive,
            send,
            serve=self._serve,
            messages=MessageQueue(lambda: self._bodies.share(tenant)),
            memory=ResponseMemory(BodyShare(self._memory, tenant), max_bytes=self._limits.memory_bytes),
            limits=self._limits,
        )

    async def _deny(self, error: ApiError, scope: Scope, send: Send) -> None:
        self._metrics.refused(error.status)
        body, headers = error_body(scope["path"], error), [JSON, *error.headers, *scope.get(NAMES, ())]
        await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})


async def upgrade_required(_: Scope, __: Receive, ___: Reply) -> None:
    """Answer a plain GET; an ASGI handler. ApiError 426."""
    raise ApiError(426, _PLAIN, headers=_UPGRADE)


def _foreign(headers: Iterable[Header]) -> bool:
    """Whether a page of another origin asks without a key: any page may, of whoever visits it, and read the answers."""
    given = list(headers)
    named = dict(given)
    origin = named.get(b"origin")
    if origin is None or given_key(given):
        return False
    return urlsplit(origin).netloc.lower() != named.get(b"host", b"").lower()
