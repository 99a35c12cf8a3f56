"""Metrics of continued conversations (A23); tokens served from cache are another matter and counted elsewhere."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Histogram

from cachefleet_controlplane.gateway.converse.turn_plan import TurnPlan
from cachefleet_controlplane.metrics import Metrics

_SHORT: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2)


class ContinuationMetrics:
    """Counters and histograms of continuation, in the registry of ``metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        self._registry = metrics.registry
        self._turns = self._counter("turns", "Turns of named conversations, by what became of them", "outcome")
        self._checks = self._counter("prefix_checks", "Remembered prefixes held against the fresh prompt", "result")
        self._full = self._counter("full_requests", "Turns that continued nothing, by reason", "reason")
        self._verified = self._counter("verified_tokens", "Prompt tokens that a remembered prefix was verified for")
        self._failures = self._counter("store_failures", "Failures of the store, each survived", "operation")
        self._canaries = self._counter("canaries", "Prefixes compared with a plain full render", "result")
        self._certified = self._counter("certifications", "Examinations of render profiles", "result")
        self._lookup = self._seconds("lookup", "Time to look a checkpoint up")
        self._plan = self._seconds("plan", "Time to verify a prefix and plan")
        self._commit = self._seconds("commit", "Time to commit a turn")

    def turn(self, outcome: str) -> None:
        """Count one ended turn by its outcome."""
        self._turns.labels(outcome).inc()

    def planned(self, plan: TurnPlan, *, seconds: float) -> None:
        """Count one plan by its check and kind; it took so many seconds."""
        self._plan.observe(seconds)
        if plan.checked:
            self._checks.labels("pass" if plan.prefix_tokens else "fail").inc()
        if plan.verified:
            self._verified.inc(plan.prefix_tokens)
        else:
            self._full.labels(plan.why or plan.outcome).inc()

    def looked_up(self, seconds: float) -> None:
        """Observe one lookup of a checkpoint, in seconds."""
        self._lookup.observe(seconds)

    def committed(self, seconds: float) -> None:
        """Observe one commit of a turn, in seconds, failed ones included."""
        self._commit.observe(seconds)

    def store_failed(self, operation: str) -> None:
        """Count one failed call of the store."""
        self._failures.labels(operation).inc()

    def canary(self, result: str) -> None:
        """Count one comparison: match, mismatch or unknown."""
        self._canaries.labels(result).inc()

    def certified(self, result: str) -> None:
        """Count one examination: certified, refused or failed."""
        self._certified.labels(result).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"cachefleet_continuation_{name}", text, labels, registry=self._registry)

    def _seconds(self, name: str, text: str) -> Histogram:
        full = f"cachefleet_continuation_{name}_seconds"
        return Histogram(full, text, buckets=_SHORT, registry=self._registry)
