"""What the operator counts."""

from __future__ import annotations

import time
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """A registry of its own and one method for each thing that happens."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        Info("cachefleet_operator_build", "What runs here", registry=self.registry).info({"version": version})
        self._reconciles = Counter(
            "cachefleet_operator_reconciles", "Reconciliations by how they ended", ["outcome"], registry=self.registry
        )
        self._durations = Histogram(
            "cachefleet_operator_reconcile_seconds",
            "Time of one reconciliation",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._requests = Histogram(
            "cachefleet_operator_api_request_seconds",
            "Time of one request to the Kubernetes API",
            ["verb", "kind", "code"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.waiting = Gauge(
            "cachefleet_operator_queue_depth", "Pools waiting to be reconciled", registry=self.registry
        )
        self.leading = Gauge(
            "cachefleet_operator_leading", "1 while this process holds the Lease", registry=self.registry
        )
        self._last_event = Gauge(
            "cachefleet_operator_last_event_timestamp_seconds",
            "When a watch last told of a change",
            registry=self.registry,
        )

    def reconciled(self, outcome: str, seconds: float) -> None:
        self._reconciles.labels(outcome).inc()
        self._durations.observe(seconds)

    def requested(self, verb: str, kind: str, status: int, seconds: float) -> None:
        """A request was answered with ``status``, or with nothing (0)."""
        self._requests.labels(verb, kind, str(status)).observe(seconds)

    def noticed(self) -> None:
        """A watch told of a change."""
        self._last_event.set(time.time())
