"""Bounds of WebSocket connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.transport.native_server import SEND_SECONDS

IDLE_SECONDS: Final = 600.0
"""How long a connection may be open while nothing is asked on it."""
OPEN_SECONDS: Final = 3600.0
"""How long it may be open at all; an answer under way is ended first."""
MAX_WAITING: Final = 8
"""Requests of one connection that may wait behind the one under way."""
MAX_REFUSED: Final = 64
"""Requests beyond that whose refusals may wait to be told; one more ends the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits:
    """How many connections there may be, how long one may be idle and open, in seconds, and what one remembers.

    ``memory_bytes`` bounds the last response of one connection, ``all_memory_bytes`` those of all.
    """

    connections: int = 2048
    idle_seconds: float = IDLE_SECONDS
    seconds: float = OPEN_SECONDS
    memory_bytes: int = 8 * 1024 * 1024
    all_memory_bytes: int = 256 * 1024 * 1024
    send_seconds: float = SEND_SECONDS
