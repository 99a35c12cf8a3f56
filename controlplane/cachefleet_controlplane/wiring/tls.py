"""TLS of one replica, from the certificates in a mounted folder: as a server, and as a client of its workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.gateway.send.worker_tls import WorkerTls
from cachefleet_controlplane.transport.served_tls import ServedTls
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
