"""Prometheus metrics of requests by handle (A23)."""

from __future__ import annotations

from prometheus_client import Counter

from cachefleet_controlplane.metrics import Metrics


class HandleMetrics:
    """Counters in the registry of ``metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self._requests = Counter(
            "cachefleet_continuation_handles",
            "Requests whose beginning a worker kept, by what became of its handle",
            ["outcome"],
            registry=registry,
        )
        self._refusals = Counter(
            "cachefleet_continuation_handle_refusals",
            "Handles that a worker did not continue, by its reason; the request was sent whole",
            ["code"],
            registry=registry,
        )
        self._bytes = Counter(
            "cachefleet_continuation_bytes_spared", "Bytes of bodies that workers were not sent", registry=registry
        )

    def request(self, outcome: str) -> None:
        """Count one ended request."""
        self._requests.labels(outcome).inc()

    def refused(self, code: str) -> None:
        """Count one handle that was refused."""
        self._refusals.labels(code).inc()

    def spared(self, count: int) -> None:
        """Count bytes that were not sent."""
        self._bytes.inc(max(0, count))
