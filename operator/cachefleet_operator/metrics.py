"""Prometheus metrics of the operator."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from cachefleet_operator import names
from cachefleet_operator.kube.objects import Ref

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_VALUES: Final = {"True": 1, "False": 0}


class Metrics:
    """The operator's Prometheus registry, and one method for each recorded event."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        Info("cachefleet_operator_build", "What runs here", registry=self.registry).info({"version": version})
        self._reconciles = counter("cachefleet_operator_reconciles", "Reconciliations by how they ended", ["outcome"])
        self._durations = histogram("cachefleet_operator_reconcile_seconds", "Time of one reconciliation")
        self._requests = histogram(
            "cachefleet_operator_api_request_seconds",
            "Time of one request to the Kubernetes API",
            ["verb", "kind", "code"],
        )
        self.waiting = gauge("cachefleet_operator_queue_depth", "Pools waiting to be reconciled")
        self._leading = gauge("cachefleet_operator_leading", "1 while this process holds the Lease")
        self._waits = gauge(
            "cachefleet_operator_waiting", "1 while this process leads and something keeps it from reconciling: /readyz"
        )
        self._lease_failing = gauge(
            "cachefleet_operator_lease_failing_seconds", "Since when no request about the Lease succeeds", ["reason"]
        )
        self._facts = counter(
            "cachefleet_operator_facts_failures", "Questions to the control plane that had no answer", ["reason"]
        )
        self._conditions = gauge(
            "cachefleet_operator_pool_condition",
            "A pool's condition: 1 true, 0 false, -1 unknown",
            ["namespace", "pool", "type"],
        )
        self._expiries = gauge(
            "cachefleet_operator_certificate_expiry_timestamp_seconds",
            "When a certificate that this operator issued ends",
            ["namespace", "secret"],
        )
        self._shown: dict[tuple[str, str], set[str]] = {}
        self._noticed_at: float | None = None
        gauge(
            "cachefleet_operator_watch_age_seconds", "Since a watch last told of anything; 0 while none runs"
        ).set_function(self._watch_age)
        self._last_event = gauge(
            "cachefleet_operator_last_event_timestamp_seconds", "When a watch last told of a change"
        )

    def reconciled(self, outcome: str, seconds: float) -> None:
        """Count one reconciliation by its outcome and record its duration."""
        self._reconciles.labels(outcome).inc()
        self._durations.observe(seconds)

    def requested(self, verb: str, kind: str, status: int, seconds: float) -> None:
        """Record one Kubernetes API request; ``status`` is 0 where no answer came."""
        self._requests.labels(verb, kind, str(status)).observe(seconds)

    def certificate(self, ref: Ref, ends: dt.datetime) -> None:
        """Set when the certificate in a Secret ends."""
        self._expiries.labels(ref.namespace, ref.name).set(ends.timestamp())

    def leads(self, *, yes: bool) -> None:
        """Record whether this process leads; who does not cannot tell when certificates end."""
        self._leading.set(yes)
        if not yes:
            self._expiries.clear()

    def waits(self, *, yes: bool) -> None:
        """Record whether something keeps this process, which leads, from reconciling."""
        self._waits.set(yes)

    def lease_fails(self, reason: str, seconds: float) -> None:
        """Record since when the Lease cannot be read or written, "" where it can."""
        self._lease_failing.clear()
        if reason:
            self._lease_failing.labels(reason).set(seconds)

    def noticed(self) -> None:
        """Record that a watch delivered a change."""
        self._last_event.set(time.time())
        self._noticed_at = time.monotonic()

    def watching(self) -> None:
        """Watches have started: the watch age counts from now."""
        self._noticed_at = time.monotonic()

    def not_watching(self) -> None:
        """Watches have ended: reset the watch age to 0 and remove all pool conditions."""
        self._noticed_at = None
        for namespace, pool in tuple(self._shown):
            self.forget(namespace, pool)

    def unanswered(self, reason: str) -> None:
        """Count a failed request to the control plane."""
        self._facts.labels(reason).inc()

    def conditions(self, namespace: str, pool: str, conditions: Sequence[Mapping[str, Any]]) -> None:
        """Set the gauges of a pool's conditions; remove those of conditions that it no longer has."""
        types = {str(condition["type"]) for condition in conditions}
        for gone in self._shown.get((namespace, pool), set()) - types:
            self._conditions.remove(namespace, pool, gone)
        for condition in conditions:
            value = _VALUES.get(str(condition["status"]), -1)
            self._conditions.labels(namespace, pool, str(condition["type"])).set(value)
        self._shown[namespace, pool] = types

    def pools(self) -> set[str]:
        """Keys "namespace/name" of all pools that have gauges."""
        return {f"{namespace}/{pool}" for namespace, pool in self._shown}

    def forget(self, namespace: str, pool: str) -> None:
        """Remove the gauges of a pool that does not exist any more."""
        for kind in self._shown.pop((namespace, pool), set()):
            self._conditions.remove(namespace, pool, kind)
        self._expiries.remove(namespace, names.certificate(pool))

    def _watch_age(self) -> float:
        return 0.0 if self._noticed_at is None else time.monotonic() - self._noticed_at
