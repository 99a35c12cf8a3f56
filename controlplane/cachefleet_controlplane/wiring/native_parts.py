"""Builds the native transport and the client of workers over it."""

from __future__ import annotations

from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.worker_tls import WorkerTls
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.transport_metrics import TransportCollector
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from cachefleet_controlplane.wiring.settings import Settings, SettingsError


def transport_of(settings: Settings, metrics: Metrics) -> Completions:
    """The native transport's threads, shown by ``metrics``. SettingsError where they cannot be started."""
    try:
        completions = Completions(threads=settings.gateway_threads)
    except OSError as error:
        line = f"CACHEFLEET_GATEWAY_THREADS: {settings.gateway_threads} threads cannot be started: {error}"
        raise SettingsError([line]) from error
    metrics.collect_from(TransportCollector(completions))
    return completions


def upstream_of(settings: Settings, bounds: ReplicaBounds, tls: WorkerTls | None, completions: Completions) -> Upstream:
    """The client of workers."""
    connect, idle = bounds.connect_seconds, settings.upstream_idle_seconds
    return Upstream(completions, connect_seconds=connect, idle_seconds=idle, tls=tls)
