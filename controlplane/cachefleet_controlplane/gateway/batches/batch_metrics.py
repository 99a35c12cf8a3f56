"""Metrics of batches: how many there are by status, and what became of their lines."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from prometheus_client import Counter, Gauge

from cachefleet_controlplane.gateway.batches.batch_status import OVER, BatchStatus
from cachefleet_controlplane.metrics import Metrics


class LineOutcome(StrEnum):
    """What became of a line; a metric's label."""

    ANSWERED = "answered"
    FAILED = "failed"
    """It was answered with an error."""
    RETRIED = "retried"
    """There was no room, or workers failed: it is asked again."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    OVER_BUDGET = "over_budget"
    """A budget that it counts against is spent for longer than its window."""


class BatchMetrics:
    """In the registry of ``metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self._batches = Gauge(
            "cachefleet_batches", "Batches that are not over, of all replicas", ["status"], registry=registry
        )
        self._lines = Counter(
            "cachefleet_batch_lines", "Lines of batches, by what became of them", ["outcome"], registry=registry
        )
        self._failures = Counter(
            "cachefleet_batch_store_failures", "Failed calls of the store of batches", ["operation"], registry=registry
        )
        for outcome in LineOutcome:
            self._lines.labels(outcome)
        self.batches({})

    def batches(self, counts: Mapping[str, int]) -> None:
        """Show how many there are by status."""
        for status in BatchStatus:
            if status not in OVER:
                self._batches.labels(status).set(counts.get(status, 0))

    def line(self, outcome: LineOutcome, count: int = 1) -> None:
        """Count lines."""
        self._lines.labels(outcome).inc(count)

    def store_failed(self, operation: str) -> None:
        """Count a failed call."""
        self._failures.labels(operation).inc()
