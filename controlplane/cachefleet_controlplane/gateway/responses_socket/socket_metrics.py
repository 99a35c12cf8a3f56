"""Metrics of clients' WebSocket connections; their requests are counted with all others."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

from cachefleet_controlplane.metrics import Metrics

_REASONS: Final = ("gone", "idle", "limit", "restart", "flood", "failed")
"""Why a connection ended."""


class SocketMetrics:
    """A gauge and two counters, in the registry of ``metrics``."""

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
