"""Prometheus counters per tenant. A tenant is a label only up to MAX_TENANTS distinct ones, "other" beyond."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

from cachefleet_controlplane.exposition import remembering
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.tenant_records import PICOS, UsageRecord

MAX_TENANTS: Final = 256
OTHER: Final = "other"
_AMOUNTS: Final = {
    "charged": "Charged to a tenant at its pools' prices, in their currency",
    "saved": "What a tenant would have been charged more without caches",
    "wasted": "What a tenant was charged more for prompt tokens that were computed before",
    "compute_saved": "Cost of devices' time that a tenant's cached tokens would have taken",
    "compute_wasted": "Cost of devices' time for a tenant's prompt tokens that were computed before",
}


class TenantMetrics:
    """Counters in the registry of ``metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        self._registry = metrics.registry
        self._names: set[str] = set()
        self._requests = self._counter("requests", "Requests of a tenant sent to a worker")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of a tenant, cached ones included")
        self._cached = self._counter("cached_tokens", "Prompt tokens of a tenant served from cache")
        self._completion = self._counter("completion_tokens", "Tokens generated for a tenant")
        self._waits = self._counter("queued_requests", "Requests of a tenant that waited for room, however that ended")
        self._waited = self._counter("queued_seconds", "Seconds for which a tenant's requests waited for room")
        self._amounts = {name: self._counter(name, text) for name, text in _AMOUNTS.items()}
        self._refusals = self._counter("refusals", "Requests of a tenant refused at admission", "reason")

    def used(self, used: UsageRecord) -> None:
        """Count requests that were sent to a worker, and their tokens."""
        name = self._name(used.tenant)
        self._requests.labels(name).inc(used.requests)
        self._prompt.labels(name).inc(used.prompt_tokens)
        self._cached.labels(name).inc(used.cached_tokens)
        self._completion.labels(name).inc(used.completion_tokens)
        for amount, counter in self._amounts.items():
            counter.labels(name).inc(getattr(used, amount) / PICOS)

    def waited(self, tenant: str, seconds: float) -> None:
        """Count a request that has waited for room."""
        name = self._name(tenant)
        self._waits.labels(name).inc()
        self._waited.labels(name).inc(seconds)

    def refused(self, tenant: str, reason: str) -> None:
        """Count a refused request of a known tenant: disabled, or the Limit that it reached."""
        self._refusals.labels(self._name(tenant), reason).inc()

    def _name(self, tenant: str) -> str:
        if tenant in self._names or len(self._names) < MAX_TENANTS:
            self._names.add(tenant)
            return tenant
        return OTHER

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return remembering(
            Counter(f"cachefleet_tenant_{name}", help_text, ("tenant", *labels), registry=self._registry)
        )
