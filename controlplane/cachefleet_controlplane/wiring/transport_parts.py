"""Builds the native transport, TLS of the ports and towards workers, and the client of workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.gateway.send.worker_tls import WorkerTls
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.served_tls import ServedTls
from cachefleet_controlplane.transport.transport_metrics import TransportCollector
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from cachefleet_controlplane.wiring.settings import Settings, SettingsError
from cachefleet_core.tls_names import AUTHORITIES
from cachefleet_runtime.tls import TrustedAuthorities


@dataclass(frozen=True, slots=True)
class TlsParts:
    """TLS of the internal and the public port, and how workers are verified; None each where there is none."""

    internal: ServedTls | None
    workers: WorkerTls | None
    public: ServedTls | None = None


def tls_parts(settings: Settings, credentials: Credentials) -> TlsParts:
    """All from the folders that the settings name. SettingsError where the certificates in one cannot be used."""
    public = _public(settings.gateway_tls_folder)
    if settings.tls_folder is None:
        return TlsParts(None, None, public)
    trusted = settings.tls_folder / AUTHORITIES
    try:
        workers = WorkerTls(TrustedAuthorities(trusted), credentials.server_name)
        return TlsParts(ServedTls(settings.tls_folder), workers, public)
    except OSError as error:
        raise SettingsError([f"CACHEFLEET_TLS_FOLDER: {error}"]) from error


def _public(folder: Path | None) -> ServedTls | None:
    try:
        return None if folder is None else ServedTls(folder)
    except OSError as error:
        raise SettingsError([f"CACHEFLEET_GATEWAY_TLS_FOLDER: {error}"]) from error


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
