"""Bounds of the gateway on what clients send and read."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_controlplane.http_protocol import STALL_SECONDS
from cachefleet_controlplane.transport.native_server import SEND_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBounds:
    """Bounds on a body (bytes, seconds), on all bodies held at once (``buffered_bytes``), on requests under way,
    and on the seconds for which a client may not read its answer (``send_seconds``) or send nothing of its body
    (``stall_seconds``).
    """

    body_bytes: int
    body_seconds: float
    requests: int
    send_seconds: float = SEND_SECONDS
    stall_seconds: float = STALL_SECONDS
    buffered_bytes: int = 256 * 1024 * 1024
