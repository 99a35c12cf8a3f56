"""Prometheus metrics of the transport, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from cachefleet_controlplane.transport.completions import Completions


class TransportCollector(Collector):
    """Version of the native code that moves the bytes, and how often it panicked."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions

    def collect(self) -> Iterable[Metric]:
        """The metrics, as of now."""
        help_text = "Native code that moves the bytes of clients and workers"
        yield InfoMetricFamily("cachefleet_transport", help_text, {"version": self._completions.version})
        help_text = "Requests that failed because native code panicked"
        yield CounterMetricFamily("cachefleet_transport_panics", help_text, value=self._completions.native.panics)
