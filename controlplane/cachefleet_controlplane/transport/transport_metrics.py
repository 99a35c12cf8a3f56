"""Prometheus metrics of the transport, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from cachefleet_controlplane.transport.chosen_transport import Transport


class TransportCollector(Collector):
    """Which code moves the bytes, and how often it panicked."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def collect(self) -> Iterable[Metric]:
        """The metrics, as of now."""
        chosen = {"code": self._transport.code, "reason": self._transport.reason}
        yield InfoMetricFamily("cachefleet_transport", "Code that moves the bytes of clients and workers", chosen)
        help_text = "Requests that failed because native code panicked"
        yield CounterMetricFamily("cachefleet_transport_panics", help_text, value=self._transport.panics)
