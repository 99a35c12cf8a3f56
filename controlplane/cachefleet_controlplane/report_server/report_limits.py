"""Bounds of an agent's connection, and its close codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from cachefleet_controlplane.transport.websocket_protocol import FIRST_MESSAGE_BYTES
from cachefleet_core.report_frames import MAX_FRAME_BYTES

MALFORMED: Final = 4400
FORBIDDEN: Final = 4403
UNKNOWN_POOL: Final = 4404
SILENT: Final = 4408
SUPERSEDED: Final = 4409
TRY_LATER: Final = 1013
INTERNAL: Final = 1011

CLOSE_CODES: Final[Mapping[str, int]] = {
    "busy": TRY_LATER,
    "foreign": MALFORMED,
    "forbidden": FORBIDDEN,
    "internal": INTERNAL,
    "malformed": MALFORMED,
    "not_ready": TRY_LATER,
    "silent": SILENT,
    "slow": TRY_LATER,
    "superseded": SUPERSEDED,
    "unannounced": MALFORMED,
    "unknown_pool": UNKNOWN_POOL,
}
"""WebSocket close codes by the words that metrics and logs use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLimits:
    """Bounds of agents' connections; times in seconds."""

    connections: int = 4096
    handshakes: int = 1024
    """Connections whose bearer is being checked, before they are accepted."""
    hello_seconds: float = 10.0
    """From acceptance to the first Hello, and from there until this control plane knows its pools."""
    authorize_seconds: float = 15.0
    """How long a check of a bearer may take, before the connection is accepted and again after its Hello."""
    idle_seconds: float = 60.0
    """Longest silence; a healthy agent reports every second."""
    first_frame_bytes: int = FIRST_MESSAGE_BYTES
    """Bound of a Hello, which is read before it is known whose agent this is."""
    frame_bytes: int = MAX_FRAME_BYTES
    outbox_frames: int = 64
    """Frames queued for an agent that does not read."""


class ReportMetrics(Protocol):
    """The part of ``metrics.Metrics`` that counts reports."""

    def reports_connected(self) -> None: ...
    def reports_disconnected(self) -> None: ...
    def frame(self, kind: str, size: int = 0, *, frames: int = 1) -> None: ...
    def malformed(self, reason: str) -> None: ...
    def report_rejected(self, reason: str) -> None: ...
    def divergence(self) -> None: ...
    def resync(self, reason: str) -> None: ...
    def epoch(self) -> None: ...
    def task_error(self, task: str) -> None: ...
