"""``/v1/reports``: a raw ASGI WebSocket application, one task per connection.

A connection needs the subprotocol and the bearer token of an agent before it is accepted, then a Hello in time, and the
authorizer's consent to both. Until then only small messages are read. After that a frame is either sound and applied,
or it ends the connection with a code and nothing of it has been applied. The event loop gets a turn after every frame.
The last part of a snapshot applies all of them at once, which takes a millisecond for each 30,000 blocks in native code
and for each 1,500 in Python.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

from starlette.types import Receive, Scope, Send

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.hot_prefixes.new_worker_warmup import NewWorkerWarmUp
from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, Authorization, Reporter, bearer
from cachefleet_controlplane.report_server.connection import AgentSocket, ReportSession
from cachefleet_controlplane.report_server.kept_states import KeptStates
from cachefleet_controlplane.report_server.peer_log import PeerLog
from cachefleet_controlplane.report_server.report_limits import ReportLimits, ReportMetrics
from cachefleet_core.report_frames import SUBPROTOCOL, Hello

logger = logging.getLogger(__name__)


class Authorizer(Protocol):
    """Decides who may report; both methods raise AccessUnavailableError where that cannot be known now."""

    async def agent(self, token: str) -> Authorization:
        """Whether the bearer of this token is an agent at all."""
        ...

    async def reports(self, token: str, hello: Hello) -> Reporter | None:
        """Who it is, where it may report as the worker of this Hello."""
        ...


@dataclass(frozen=True, slots=True)
class _Denial:
    """Why a connection is not accepted: the word that metrics use, an HTTP status, and what to do."""

    code: str
    status: int
    reason: str


_UPGRADE: Final = b"this is a WebSocket endpoint\n"
_BUSY: Final = _Denial("busy", 503, "too many agents: try again later")
_NOT_READY: Final = _Denial("not_ready", 503, "nobody can say now whose token this is: try again later")
_DENIALS: Final = {
    Authorization.UNAUTHENTICATED: _Denial("unauthenticated", 401, "a valid bearer token of an agent is needed"),
    Authorization.FORBIDDEN: _Denial("forbidden", 403, "the token is not that of a worker's pod in a namespace served"),
}


class ReportsServer:
    """Serves agents' connections for one fleet."""

    def __init__(
        self,
        fleet: Fleet,
        authorizer: Authorizer,
        metrics: ReportMetrics,
        *,
        limits: ReportLimits | None = None,
        new_workers: NewWorkerWarmUp | None = None,
    ) -> None:
        """``new_workers`` decides which hot prefixes new workers are told of."""
        self._new_workers = new_workers
        self._fleet = fleet
        self._authorizer = authorizer
        self._metrics = metrics
        self._limits = limits or ReportLimits()
        self._log = PeerLog()
        self._kept_states = KeptStates(fleet.taps)
        self.connections = 0
        self.handshakes = 0
        """Connections whose bearer is being checked."""

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
        token = bearer(_header(scope["headers"], b"authorization"))
        if denial := await self._checked(token):
            self._metrics.report_rejected(denial.code)
            await _deny(denial, send)
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        address = (scope.get("client") or ("",))[0]
        number = _header(scope["headers"], b"x-cachefleet-tap")  # set by the native server
        tap = self._fleet.taps.get(int(number)) if number else None
        await self._serve(AgentSocket(token, address, receive, send, tap), int(number or 0))

    async def _checked(self, token: str) -> _Denial | None:
        """Why the bearer of a token is not let in; None where it is. Nothing is asked about no token."""
        if not token:
            return _DENIALS[Authorization.UNAUTHENTICATED]
        if self.connections + self.handshakes >= self._limits.connections or self.handshakes >= self._limits.handshakes:
            return _BUSY
        self.handshakes += 1
        try:
            # An agent that gives up meanwhile finds the answer remembered when it comes again.
            async with asyncio.timeout(self._limits.authorize_seconds):
                access = await self._authorizer.agent(token)
        except (AccessUnavailableError, TimeoutError):
            return _NOT_READY
        finally:
            self.handshakes -= 1
        return _DENIALS.get(access)

    async def _serve(self, agent: AgentSocket, number: int) -> None:
        session = ReportSession(
            self._fleet,
            self._authorizer.reports,
            self._metrics,
            agent=agent,
            limits=self._limits,
            log=self._log,
            new_workers=self._new_workers,
        )
        self.connections += 1
        self._metrics.reports_connected()
        try:
            with self._kept_states.followed(number, session) if agent.tap else nullcontext():
                await session.run()
        finally:
            self.connections -= 1
            self._metrics.reports_disconnected()


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


async def _deny(denial: _Denial, send: Send) -> None:
    """Answer the handshake with an HTTP error instead of accepting it."""
    extra = [(b"www-authenticate", b"Bearer")] if denial.status == 401 else []
    headers = [(b"content-type", b"text/plain"), *extra]
    await send({"type": "websocket.http.response.start", "status": denial.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": denial.reason.encode() + b"\n"})


async def _upgrade_required(send: Send) -> None:
    headers = [(b"content-type", b"text/plain"), (b"upgrade", b"websocket"), (b"connection", b"upgrade")]
    await send({"type": "http.response.start", "status": 426, "headers": headers})
    await send({"type": "http.response.body", "body": _UPGRADE})
