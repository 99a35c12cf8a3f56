"""``/v1/reports``: a raw ASGI WebSocket application, one task per connection.

A connection needs the subprotocol, a bearer token, a Hello in time, and the authorizer's consent to both. After that a
frame is either sound and applied, or it ends the connection with a code and nothing of it has been applied. The event
loop gets a turn after every frame. The last part of a snapshot applies all of them at once, which takes a millisecond
for each 30,000 blocks in native code and for each 1,500 in Python.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from starlette.types import Receive, Scope, Send

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.hot_prefixes.new_worker_warmup import NewWorkerWarmUp
from cachefleet_controlplane.internal_auth.authorizer import bearer
from cachefleet_controlplane.report_server.connection import Session
from cachefleet_controlplane.report_server.report_limits import TRY_LATER, ReportLimits, ReportMetrics
from cachefleet_core.report_frames import SUBPROTOCOL, Hello

logger = logging.getLogger(__name__)

Authorizer = Callable[[str, Hello], Awaitable[bool]]
"""Whether the bearer of this token may report as the worker of this Hello."""

_UPGRADE: Final = b"this is a WebSocket endpoint\n"


class ReportsServer:
    """Serves agents' connections for one fleet."""

    def __init__(
        self,
        fleet: Fleet,
        authorize: Authorizer,
        metrics: ReportMetrics,
        *,
        limits: ReportLimits | None = None,
        new_workers: NewWorkerWarmUp | None = None,
    ) -> None:
        """``new_workers`` decides which hot prefixes new workers are told of."""
        self._new_workers = new_workers
        self._fleet = fleet
        self._authorize = authorize
        self._metrics = metrics
        self._limits = limits or ReportLimits()
        self.connections = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _upgrade_required(send)
        elif scope["type"] == "websocket" and (await receive())["type"] == "websocket.connect":
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        if SUBPROTOCOL not in scope.get("subprotocols", ()):
            self._metrics.report_rejected("subprotocol")
            await send({"type": "websocket.close", "code": 1002, "reason": f"speaks {SUBPROTOCOL} only"})
            return
        if self.connections >= self._limits.connections:
            self._metrics.report_rejected("busy")
            await send({"type": "websocket.close", "code": TRY_LATER, "reason": "too many agents"})
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        await self._serve(bearer(_header(scope["headers"], b"authorization")), receive, send)

    async def _serve(self, token: str, receive: Receive, send: Send) -> None:
        session = Session(
            self._fleet,
            self._authorize,
            self._metrics,
            limits=self._limits,
            token=token,
            receive=receive,
            send=send,
            new_workers=self._new_workers,
        )
        self.connections += 1
        self._metrics.reports_connected()
        try:
            await session.run()
        finally:
            self.connections -= 1
            self._metrics.reports_disconnected()


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


async def _upgrade_required(send: Send) -> None:
    headers = [(b"content-type", b"text/plain"), (b"upgrade", b"websocket"), (b"connection", b"upgrade")]
    await send({"type": "http.response.start", "status": 426, "headers": headers})
    await send({"type": "http.response.body", "body": _UPGRADE})
